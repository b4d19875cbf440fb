"""How far the log was durable, recorded in a file beside it.

Owns: `log/ends`. It is only a witness: without it, or if it cannot be read, recovery judges by the
log alone.

Crash: the old file stays until the new one is whole and durable; both are right.
"""

from __future__ import annotations

from stratalog.errors import FormatError
from stratalog.format.ends import End, Ends, decode_ends, encode_ends
from stratalog.format.names import ends_path, log_path
from stratalog.fs import FileSystem


def read_ends(fs: FileSystem, root: str, identity: bytes) -> dict[int, End]:
    """Read where each shard's log ended at least; empty if there is no valid file."""
    try:
        file = fs.open(ends_path(root), "read")
    except OSError:
        return {}
    try:
        ends = decode_ends(file.pread(file.size(), 0))
    except (FormatError, OSError):
        return {}
    finally:
        file.close()
    return ends.shards if ends.identity == identity else {}


def write_ends(fs: FileSystem, root: str, identity: bytes, shards: dict[int, End]) -> None:
    """Record how far the log is durable; does nothing if the file already says so."""
    if read_ends(fs, root, identity) == shards:
        return
    temp = ends_path(root, ".tmp")
    fs.unlink(temp)
    file = fs.open(temp, "create")
    try:
        file.pwrite([encode_ends(Ends(identity, shards))], 0)
        file.fdatasync()
    finally:
        file.close()
    fs.rename(temp, ends_path(root))
    fs.sync_dir(log_path(root))
