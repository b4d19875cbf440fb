"""Optional parts of LedgerQ's entries: headers, and payloads that are compressed."""

from __future__ import annotations

import zlib

import numpy as np
import pyarrow as pa

from stratalog.format.arrow import HEADERS as HEADERS_TYPE
from stratalog.interop.ledgerq import format as ledgerq

PAYLOAD_BYTES_MAX = 100 << 20
"""Largest payload after decompression: the bound of LedgerQ itself."""


class OptionalParts:
    """Headers and decompressed payloads of the few entries of a batch that have them."""

    def __init__(self, rows: int) -> None:
        self._counts = np.zeros(rows, np.int32)
        self._keys: list[str] = []
        self._texts: list[bytes] = []
        self.values: dict[int, bytes] = {}
        self.lost: list[int] = []

    def read(self, row: int, chunk: bytes, position: int, end: int, flags: int) -> int:
        """Read one entry from its headers on; returns where its payload begins."""
        if flags & ledgerq.HEADERS:
            position = self._read_headers(row, chunk, position, end)
        if not flags & ledgerq.COMPRESSED:
            return position
        if position >= end or chunk[position] != ledgerq.GZIP:
            raise ValueError("its compression is not known")
        self.values[row] = gunzip(chunk[position + 1 : end], PAYLOAD_BYTES_MAX)
        return position + 1

    def _read_headers(self, row: int, chunk: bytes, position: int, end: int) -> int:
        count, position = _number(chunk, position, end)
        keys, texts = [], []
        for _ in range(count):
            key, position = _text(chunk, position, end)
            text, position = _text(chunk, position, end)
            keys.append(key.decode())
            texts.append(text)
        self._counts[row] = count
        self._keys += keys
        self._texts += texts
        return position

    def headers_array(self, rows: int) -> pa.Array:
        """Build the column of headers; None where there are none."""
        if not self._keys:
            return pa.nulls(rows, HEADERS_TYPE)
        items = pa.StructArray.from_arrays(
            [pa.array(self._keys, pa.string()), pa.array(self._texts, pa.binary())],
            fields=list(HEADERS_TYPE.value_type),
        )
        ends = np.concatenate(([0], np.cumsum(self._counts))).astype(np.int32)
        mask = pa.array(self._counts == 0)
        return pa.ListArray.from_arrays(pa.array(ends), items, type=HEADERS_TYPE, mask=mask)


def gunzip(data: bytes, bytes_max: int) -> bytes:
    """Decompress one gzip member of a bounded size; raises `ValueError`."""
    inflate = zlib.decompressobj(31)
    try:
        value = inflate.decompress(data, bytes_max + 1)
    except zlib.error as error:
        raise ValueError(f"its payload does not decompress ({error})") from error
    if len(value) > bytes_max:
        raise ValueError(f"its payload has more than {bytes_max} bytes")
    if not inflate.eof:
        raise ValueError("its payload is cut short")
    return value


def _number(chunk: bytes, position: int, end: int) -> tuple[int, int]:
    if position + 2 > end:
        raise ValueError("its headers are cut short")
    return int.from_bytes(chunk[position : position + 2], "little"), position + 2


def _text(chunk: bytes, position: int, end: int) -> tuple[bytes, int]:
    length, position = _number(chunk, position, end)
    if position + length > end:
        raise ValueError("its headers are cut short")
    return chunk[position : position + length], position + length


__all__ = ["PAYLOAD_BYTES_MAX", "OptionalParts", "gunzip"]
