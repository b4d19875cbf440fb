"""State that a directory of Flo has no place for, in a file of ours: `.stratalog_state.json`.

Flo has one set of keys in each namespace, and a table here has a name. One table keeps its keys;
those of the others get the table's name and a colon as a prefix, which this file records.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from stratalog.fs import FileSystem
from stratalog.interop.files import join, read_file
from stratalog.options import TIME_MAX

NAME = ".stratalog_state.json"
TABLE = "kv"
"""The name for the keys of a namespace, which has none itself."""
VERSION = 1

_IN_NAMESPACE = re.compile(r"([0-9a-f]{8})\.(.+)", re.DOTALL)


class OurState(msgspec.Struct):
    """`.stratalog_state.json`."""

    version: int = VERSION
    tables: dict[str, str] = {}
    """Names of the tables in the default namespace, and the prefix of their keys there."""
    expires_at: dict[int, int] = {}
    """Expiry of puts by their index, in nanoseconds since 1970."""


def read_state(fs: FileSystem, path: str) -> OurState | str:
    """Read our file; an empty state if there is none, and a sentence if it is invalid."""
    data = read_file(fs, join(path, NAME))
    if data is None:
        return OurState()
    try:
        state = msgspec.json.decode(data, type=OurState)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return f"The file does not decode: {error}."
    if state.version != VERSION:
        return f"The file is of version {state.version}, and this release reads {VERSION}."
    if not all(0 < expiry <= TIME_MAX for expiry in state.expires_at.values()):
        return "The file has times that cannot be."
    return state


def table_of(tables: Mapping[str, str], key: bytes) -> tuple[str, bytes]:
    """Return the table of a key in the default namespace, and the key in it."""
    best, length = TABLE, -1
    for name, prefix in tables.items():
        start = prefix.encode()
        if len(start) > length and key.startswith(start):
            best, length = name, len(start)
    return best, key[max(length, 0) :]


def prefixes(names: Sequence[str]) -> dict[str, str]:
    """Choose the prefixes of tables that share a namespace."""
    plain = TABLE if TABLE in names or len(names) != 1 else names[0]
    return {name: "" if name == plain else f"{name}:" for name in names}


def namespace_of(name: str) -> tuple[int, str]:
    """Return the namespace of a name, by the eight digits before it, and the name in it."""
    found = _IN_NAMESPACE.fullmatch(name)
    namespace = 0 if found is None else int(found[1], 16)
    return (namespace, found[2]) if found is not None and namespace else (0, name)


__all__ = ["NAME", "TABLE", "OurState", "namespace_of", "prefixes", "read_state", "table_of"]
