"""Readers of foreign directories against files that no program wrote.

A real directory with some bytes of some files changed: it is read, with problems, or refused with
an error of ours. Nothing else is raised, and no record is served that the original did not have,
unless a structure without a checksum (JSON, metadata) was what changed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from stratalog.errors import StratalogError
from stratalog.fs import PosixFileSystem
from stratalog.interop.codecs.s2 import decompress_s2
from stratalog.interop.flo import format as flo
from stratalog.interop.flo.read import read as read_flo
from stratalog.interop.flo.write import encode_entry, encode_segment
from stratalog.interop.fluxmq.read import read as read_fluxmq
from stratalog.interop.ledgerq.read import read as read_ledgerq
from stratalog.interop.model import SCHEMA, Foreign, ForeignTopic
from stratalog.interop.topics.read import _batch
from stratalog.interop.topics.read import read as read_topics
from stratalog.interop.topics.replay import frames
from stratalog.interop.topics.state import record_of
from tests.fuzz.inputs import Fuzz, mutate

FOREIGN = Path(__file__).parents[1] / "golden" / "foreign"
READERS: dict[str, Callable[..., Foreign]] = {
    "ledgerq": read_ledgerq, "fluxmq": read_fluxmq, "topics": read_topics, "flo": read_flo,
}  # fmt: skip
CASES = [
    ("ledgerq", "headers_ttl_priority"), ("ledgerq", "gzip"), ("ledgerq", "dlq"),
    ("fluxmq", "none"), ("fluxmq", "s2"), ("fluxmq", "zstd"), ("fluxmq", "group_compacted"),
    ("fluxmq", "group_ops_uncompacted"), ("topics", "shard2_killed"), ("topics", "queue_leases"),
    ("flo", "written"),
]  # fmt: skip


def flo_segment(first: int, count: int) -> bytes:
    """A segment of Flo, for which there is no real one: puts, messages, records and points."""
    entries = []
    for index in range(first, first + count):
        type = (0x01, 0x02, 0x10, 0x20, 0x21, 0x22, 0x30, 0x50)[index % 8]
        key = (index - 1).to_bytes(8, "little") if type in (0x21, 0x22) else b"key%d" % (index % 5)
        value = bytes(4) + b"value %d" % index
        payload = flo.COMMAND.pack(0, len(key), len(value)) + key + value
        entries.append((index, index, type, encode_entry(type, index, 10**18 + index, payload)))
    return encode_segment(entries, first + count - 1)


@cache
def files(layout: str, case: str) -> dict[str, bytes]:
    """The files of a real directory."""
    if layout == "flo":
        return {
            "00000/segs/0000000001.flseg": flo_segment(1, 40),
            "00000/segs/0000000041.flseg": flo_segment(41, 40),
        }
    root = FOREIGN / layout / case / "data"
    root = root / "hot" if layout == "topics" else root
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def records(foreign: Foreign) -> set[tuple[Any, ...]]:
    """Every record, as something that can be compared."""
    found = set()
    for topic in foreign.contents.values():
        table = pa.Table.from_batches(list(topic.batches()), SCHEMA)
        stamps = table.column("timestamp").cast(pa.int64()).to_pylist()
        for row, stamp in zip(table.to_pylist(), stamps, strict=True):
            found.add((row["offset"], stamp, row["key"], row["value"], str(row["headers"])))
    return found


@cache
def original(layout: str, case: str) -> set[tuple[Any, ...]]:
    """The records of a real directory."""
    if layout == "flo":
        with tempfile.TemporaryDirectory() as directory:
            for name, data in files(layout, case).items():
                path = Path(directory) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
            return records(read_flo(PosixFileSystem(), directory))
    root = FOREIGN / layout / case / "data"
    root = root / "hot" if layout == "topics" else root
    found = records(READERS[layout](PosixFileSystem(), str(root)))
    for path in root.rglob("wal-*.log"):
        # Deleted records are back if the frame that deleted them is what changed.
        appends = [frame for _, _, frame in frames(path.read_bytes(), 0) if frame.type == 1]
        batch = _batch([record_of(frame) for frame in appends])
        topic = ForeignTopic("", "topic", 0, 0, lambda batch=batch: iter([batch]))  # type: ignore[misc]
        found |= records(Foreign("topics", "", {"": topic}))
    return found


@pytest.mark.parametrize(("layout", "case"), CASES)
def test_a_changed_directory_is_read_or_refused(layout: str, case: str, fuzz: Fuzz) -> None:
    """Problems or a typed error, and never a record from nowhere."""
    known = original(layout, case)

    def check(rng: Random) -> str:
        with tempfile.TemporaryDirectory() as directory:
            chosen = rng.sample(sorted(files(layout, case)), rng.choice((1, 1, 2)))
            for name, data in files(layout, case).items():
                path = Path(directory) / "q" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                for _ in range(rng.choice((1, 1, 3)) if name in chosen else 0):
                    data = mutate(rng, data, 1)
                path.write_bytes(data)
            try:
                foreign = READERS[layout](PosixFileSystem(), str(Path(directory) / "q"))
                found = records(foreign)
            except StratalogError as error:
                return type(error).__name__
        assert found <= known, f"{found - known} in {chosen}"
        return "whole" if found == known else "less"

    fuzz.run(0.005, check)


def test_bytes_that_are_no_s2_block_are_refused(fuzz: Fuzz) -> None:
    """A `ValueError`, or a block that is one."""
    segments = files("fluxmq", "s2").items()
    blocks = [data[44:] for name, data in segments if name.endswith(".seg")]

    def check(rng: Random) -> str:
        data = rng.choice(blocks)[: rng.randrange(2000)]
        for _ in range(rng.randrange(3)):
            data = mutate(rng, data, 1)
        try:
            return "whole" if len(decompress_s2(data, 1 << 16)) <= 1 << 16 else "too much"
        except ValueError:
            return "refused"

    fuzz.run(0.2, check)
