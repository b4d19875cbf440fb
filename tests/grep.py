"""A hostile look at the files of a store: everything that can be found in them, by any means.

Files are searched as they are, and every frame that is anywhere in them, whole or not, valid or
not, is searched once more with its body decompressed: in use, in the slack of a log file, inside of
another frame, after the end of an open segment.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from stratalog.errors import StratalogError
from stratalog.format.codec import decompress
from stratalog.format.frame import CODEC_MASK, HEADER, HEADER_BYTES, MAGIC


def search(pattern: bytes, *places: Path) -> dict[bytes, set[str]]:
    """Find matches of a pattern anywhere below the places, and the files that they are in."""
    files = {
        "/".join(path.parts[-3:]): path.read_bytes()
        for place in places
        for path in sorted(place.rglob("*"))
        if path.is_file()
    }
    return search_image(pattern, files)


def search_image(pattern: bytes, files: Mapping[str, bytes]) -> dict[bytes, set[str]]:
    """Find matches of a pattern anywhere in files, raw or decoded, and in which of them."""
    found: dict[bytes, set[str]] = {}
    for name, data in files.items():
        for content in (data, *_bodies(data)):
            for match in re.findall(pattern, content):
                found.setdefault(match, set()).add(name)
    return found


def _bodies(data: bytes) -> Iterator[bytes]:
    for found in re.finditer(re.escape(MAGIC), data):
        position = found.start()
        if position + HEADER_BYTES > len(data):
            continue
        fields = HEADER.unpack_from(data, position)
        flags, length = fields[3], fields[4]
        codec = flags & CODEC_MASK
        if codec:
            start = position + HEADER_BYTES
            with contextlib.suppress(StratalogError, OSError, ValueError):
                yield bytes(decompress(data[start : start + length], codec))
