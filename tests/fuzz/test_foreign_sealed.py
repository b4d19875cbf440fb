"""Readers and imports of foreign directories against content that is wrong and has right checksums.

Changed bytes nearly always fail a checksum, and nothing after it is tried. Here a unit of a real
directory (a batch, an entry, a frame, a snapshot, a value of a JSON file) is changed and sealed
again. It is imported, with problems, or refused with an error of ours; what was imported is read
back, and a second import adds nothing.
"""

from __future__ import annotations

import gc
import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from crc32c import crc32c
from xxhash import xxh3_64_intdigest

import stratalog
from stratalog.errors import CorruptionError, UnsupportedVersionError
from stratalog.interop import import_directory
from stratalog.interop.flo import format as flo
from stratalog.interop.fluxmq import format as fluxmq
from stratalog.interop.ledgerq import format as ledgerq
from stratalog.interop.topics import format as topics
from tests.fuzz.inputs import Fuzz, mutate, some_number
from tests.fuzz.test_foreign import CASES, files

REFUSED = (CorruptionError, UnsupportedVersionError)
"""Errors that an import may raise: a hole that no directory has, a version that is not known."""

Unit = tuple[int, int, Callable[[Random, bytes], bytes]]
"""Start and end of something in a file, and what changes and seals it."""


def _some_changes(rng: Random, data: bytes) -> bytes:
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        data = mutate(rng, data, 1)
    return data


def _u32(number: int) -> bytes:
    return (number & 0xFFFFFFFF).to_bytes(4, "little")


# --- units of each layout -------------------------------------------------------------------------


def _fluxmq_units(name: str, data: bytes) -> list[Unit]:
    def change(rng: Random, unit: bytes) -> bytes:
        if rng.random() < 0.3:  # the header
            head = bytearray(_some_changes(rng, unit[8 : fluxmq.BATCH_BYTES]))
            head = bytearray(bytes(head).ljust(36, b"\0")[:36])
            body = unit[fluxmq.BATCH_BYTES :]
        else:
            head = bytearray(unit[8 : fluxmq.BATCH_BYTES])
            body = _some_changes(rng, unit[fluxmq.BATCH_BYTES :])
        head[8:12] = _u32(len(body))
        head[17] = fluxmq.VERSION
        return unit[:4] + _u32(crc32c(bytes(head) + body)) + bytes(head) + body

    units: list[Unit] = []
    position = 0
    while name.endswith(".seg") and position < len(data):
        end = position + fluxmq.BATCH_BYTES + fluxmq.BATCH.unpack_from(data, position)[3]
        units.append((position, end, change))
        position = end
    return units


def _ledgerq_units(name: str, data: bytes) -> list[Unit]:
    def change(rng: Random, unit: bytes) -> bytes:
        body = _some_changes(rng, unit[4:-8])
        body = _u32(len(body) + 8) + body
        return body + _u32(crc32c(body)) + bytes(4)

    def change_numbers(rng: Random, unit: bytes) -> bytes:
        fields = list(ledgerq.METADATA.unpack(unit))
        fields[rng.choice((1, 2))] = some_number(rng)
        return ledgerq.METADATA.pack(*fields)

    if name.endswith("metadata.dat"):
        return [(0, len(data), change_numbers)]
    units: list[Unit] = []
    position = ledgerq.HEADER_BYTES
    while name.endswith(".log") and position < len(data):
        end = position + int.from_bytes(data[position : position + 4], "little") + 4
        units.append((position, end, change))
        position = end
    return units


def _topics_units(name: str, data: bytes) -> list[Unit]:
    def sealed(head: bytes, tail: bytes) -> bytes:
        body = head[4:] + tail
        return _u32(len(body) + 8) + body + xxh3_64_intdigest(body).to_bytes(8, "little")

    def change(rng: Random, unit: bytes) -> bytes:
        fields = list(topics.FRAME.unpack_from(unit))
        if rng.random() < 0.3:
            fields[1] = rng.choice(range(1, 12))
        if rng.random() < 0.3:
            place = rng.choice((3, 4))
            fields[place] = some_number(rng)
        if rng.random() < 0.2:
            fields[5] = some_number(rng) - (1 << 63)
        at = topics.FRAME_BYTES + fields[6] + fields[7]
        payload = unit[at:-8]
        if rng.random() < 0.7:
            payload = _some_changes(rng, payload)
        fields[8] = len(payload)
        return sealed(topics.FRAME.pack(*fields), unit[topics.FRAME_BYTES : at] + payload)

    def change_snapshot(rng: Random, unit: bytes) -> bytes:
        body = _some_changes(rng, unit[topics.SNAPSHOT_BYTES :])
        return (
            topics.SNAPSHOT.pack(
                topics.SNAPSHOT_MAGIC,
                topics.SNAPSHOT_VERSION,
                len(body),
                xxh3_64_intdigest(body),
            )
            + body
        )

    if "snapshot-" in name:
        return [(0, len(data), change_snapshot)]
    units: list[Unit] = []
    position = 0
    while "wal-" in name:
        length = int.from_bytes(data[position : position + 4], "little")
        if length < topics.LENGTH_MIN:
            break
        units.append((position, position + 4 + length, change))
        position += 4 + length
    return units


def _flo_units(name: str, data: bytes) -> list[Unit]:
    def change(rng: Random, unit: bytes) -> bytes:
        footer = len(unit) - flo.FOOTER_BYTES
        places = []
        position = flo.SEGMENT_BYTES
        while unit.startswith(flo.ENTRY_MAGIC.to_bytes(4, "little"), position):
            end = position + flo.ENTRY_BYTES + flo.ENTRY.unpack_from(unit, position)[7]
            places.append((position, end))
            position = end
        start, end = rng.choice(places)
        fields = list(flo.ENTRY.unpack_from(unit, start))
        payload = unit[start + flo.ENTRY_BYTES : end]
        if rng.random() < 0.4:
            fields[rng.choice((3, 5))] = some_number(rng) & 0xFFFF
        if rng.random() < 0.3:
            fields[2] = rng.randrange(256)
        if rng.random() < 0.3:
            fields[6] = some_number(rng) - (1 << 63)
        payload = _some_changes(rng, payload)
        fields[7] = len(payload)
        head = flo.ENTRY.pack(*fields)[:36]
        entry = head + _u32(crc32c(payload, crc32c(head))) + payload
        start_of_file = bytearray(unit[: flo.SEGMENT_BYTES])
        size = flo.SEGMENT.unpack_from(unit)[8] + len(entry) - (end - start)
        start_of_file[50:54] = _u32(size)
        body = bytes(start_of_file) + unit[flo.SEGMENT_BYTES : start] + entry + unit[end:footer]
        tail = list(flo.FOOTER.unpack_from(unit, footer))
        tail[4] = crc32c(body)
        return body + flo.FOOTER.pack(*tail)

    return [(0, len(data), change)] if name.endswith(".flseg") else []


def _json_units(name: str, data: bytes) -> list[Unit]:
    def strange(rng: Random) -> Any:
        number = some_number(rng)
        return rng.choice((number, -number, None, "", "text", [], {}, 1.5, True, 10**30, [number]))

    def changed(rng: Random, value: Any) -> Any:
        if isinstance(value, dict) and value and rng.random() < 0.9:
            key = rng.choice(sorted(value))
            return value | {key: changed(rng, value[key])}
        if isinstance(value, list) and value and rng.random() < 0.9:
            at = rng.randrange(len(value))
            return [*value[:at], changed(rng, value[at]), *value[at + 1 :]]
        return strange(rng)

    def change(rng: Random, unit: bytes) -> bytes:
        return json.dumps(changed(rng, json.loads(unit))).encode()

    if name.endswith(".json"):
        return [(0, len(data), change)]
    units: list[Unit] = []
    position = 0
    for line in data.splitlines(keepends=True) if name.endswith("ops.log") else ():
        end = position + len(line)
        units.append((position, end, lambda rng, unit: change(rng, unit) + b"\n"))
        position = end
    return units


UNITS = {
    "fluxmq": _fluxmq_units, "ledgerq": _ledgerq_units, "topics": _topics_units, "flo": _flo_units,
}  # fmt: skip


@cache
def units(layout: str, case: str) -> dict[str, list[Unit]]:
    """List the units of the files of a real directory that can be changed."""
    found = {
        name: [*UNITS[layout](name, data), *_json_units(name, data)]
        for name, data in files(layout, case).items()
    }
    return {name: some for name, some in found.items() if some}


def try_import(layout: str, case: str, rng: Random) -> str:
    """Import a directory with one unit changed, twice; returns what came of it."""
    name = rng.choice(sorted(units(layout, case)))
    start, end, change = rng.choice(units(layout, case)[name])
    with tempfile.TemporaryDirectory() as directory, stratalog.open(":memory:") as store:
        root = Path(directory) / "q"
        for other, data in files(layout, case).items():
            path = root / other
            path.parent.mkdir(parents=True, exist_ok=True)
            if other == name:
                data = data[:start] + change(rng, data[start:end]) + data[end:]
            path.write_bytes(data)
        report = import_directory(layout, root, store)
        assert import_directory(layout, root, store).records == 0
    return "problems" if report.problems else "whole"


@pytest.mark.parametrize(("layout", "case"), [*CASES, ("ledgerq", "dedup")])
def test_wrong_content_is_imported_or_refused(layout: str, case: str, fuzz: Fuzz) -> None:
    """Whatever a unit says, once its checksum is right."""

    def check(rng: Random) -> str:
        try:
            return try_import(layout, case, rng)
        except REFUSED as error:
            return type(error).__name__

    fuzz.run(0.0005, check)
    gc.collect()  # stores in memory refer to themselves
