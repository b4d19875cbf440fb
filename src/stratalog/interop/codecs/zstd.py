"""zstd frames of a bounded size."""

from __future__ import annotations

import pyarrow as pa

# Read in pieces: a read takes the memory that it is asked for, whatever there is.
_PIECE_BYTES = 1 << 20


def decompress_zstd(data: bytes, bytes_max: int) -> bytes:
    """Decode one frame of at most `bytes_max` bytes; raises `ValueError`."""
    pieces: list[bytes] = []
    size = 0
    try:
        with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
            while piece := stream.read(_PIECE_BYTES):
                pieces.append(piece)
                size += len(piece)
                if size > bytes_max:
                    raise ValueError(f"its content has more than {bytes_max} bytes")
    except OSError as error:
        raise ValueError(f"its content does not decode ({error})") from error
    return b"".join(pieces)
