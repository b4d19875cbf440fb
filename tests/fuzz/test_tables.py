"""State files of tables against bytes that no writer of ours made."""

from __future__ import annotations

import struct
from random import Random

import pytest
from xxhash import xxh3_64

from stratalog.format.table import (
    CHUNK_BYTES,
    HEADER_BYTES,
    Rows,
    StateHeader,
    decode_chunk,
    decode_chunk_header,
    decode_state_header,
    encode_chunk,
    encode_state_header,
)
from stratalog.handles.store import Store
from stratalog.model import Entry
from stratalog.state import table_projection
from stratalog.testing import FakeDisk, ManualClock
from tests.crash.model import kill, open_store
from tests.fuzz.inputs import Fuzz, Outcome, mutate, some_number

KEYS: list[str] = ["a", "b", "größe", "", "count", "gone", "large"]


def _forged(rng: Random, data: bytes) -> bytes:
    for _ in range(rng.choice((1, 1, 1, 3))):
        data = mutate(rng, data)
    return data


def _signed_header(data: bytes) -> bytes:
    """A header whose checksum holds, so that the checks after it are reached."""
    return data[:-8] + struct.pack("<Q", xxh3_64(data[:-8]).intdigest())


def _signed_chunk(data: bytes) -> bytes:
    head, body = data[: CHUNK_BYTES - 8], data[CHUNK_BYTES:]
    return head + struct.pack("<Q", xxh3_64(head + body).intdigest()) + body


def _rows(rng: Random) -> Rows:
    count = rng.randrange(6)
    flags = bytes(rng.randrange(8) for _ in range(count))
    return Rows(
        [rng.randrange(1 << 40) for _ in range(count)],
        [rng.randrange(1 << 62) for _ in range(count)],
        [rng.choice((0, rng.randrange(1 << 62))) for _ in range(count)],
        flags,
        [rng.randbytes(rng.randrange(12)) for _ in range(count)],
        [b"" if flag & 5 else rng.randbytes(rng.randrange(20)) for flag in flags],
    )


def test_forged_state_headers_are_consistent_or_refused(fuzz: Fuzz) -> None:
    """A decoded state is encoded as the bytes that were read."""

    def check(rng: Random) -> Outcome:
        header = StateHeader(rng.randrange(1 << 40), some_number(rng) & 0x7FFF, 3, bytes(16))
        data = _forged(rng, encode_state_header(header))
        if rng.random() < 0.7:
            data = _signed_header(data)
        found = decode_state_header(data)
        assert encode_state_header(found) == data
        return "decoded"

    outcomes = fuzz.run(0.1, check)
    assert outcomes["decoded"]
    assert outcomes["CorruptionError"]
    assert outcomes["BadMagicError"]


def test_forged_state_chunks_are_consistent_or_refused(fuzz: Fuzz) -> None:
    """Columns have a value for every row, cut where the chunk says, and never from elsewhere."""

    def check(rng: Random) -> Outcome:
        rows = _rows(rng)
        data = encode_chunk(rows, some_number(rng) & 0xFFFF)
        is_forged = rng.random() < 0.95
        if is_forged:
            data = _forged(rng, data)
            if rng.random() < 0.8 and len(data) >= CHUNK_BYTES:
                data = _signed_chunk(data)
        head, body = data[:CHUNK_BYTES], data[CHUNK_BYTES:]
        header = decode_chunk_header(head)
        found = decode_chunk(header, head, body)
        assert is_forged or found == rows
        assert {len(column) for column in found} == {header.rows}
        assert sum(map(len, found.keys)) == header.key_bytes
        assert sum(map(len, found.values)) == header.value_bytes
        again = encode_chunk(found, header.total)
        assert decode_chunk(decode_chunk_header(again[:CHUNK_BYTES]), again[:CHUNK_BYTES],
                            again[CHUNK_BYTES:]) == found  # fmt: skip
        return "decoded"

    outcomes = fuzz.run(0.2, check)
    assert outcomes["decoded"]
    assert outcomes["CorruptionError"]


# --- whole stores -----------------------------------------------------------------------------


def _store() -> tuple[FakeDisk, ManualClock]:
    """A store whose table has a state file, and records after it."""
    disk, clock = FakeDisk(), ManualClock()
    store = open_store(disk, clock, log_file_bytes=1 << 17)
    table = store.table("t", versions=3)
    for turn in range(3):
        table.put_many(dict.fromkeys(KEYS, b"%d" % turn))
        table.put("large", bytes(17_000))
        table.put(b"raw", b"%d" % turn, ttl=50.0)
        table.delete("gone")
        clock.advance(1.0)
    store.snapshot()
    table.put("a", b"after")
    table.add("count", 5)
    store.close()
    return disk, clock


def _content(store: Store) -> tuple[dict[str | bytes, bytes], list[list[Entry]], int]:
    table = store.table("t")
    keys: list[str | bytes] = [*KEYS, b"raw"]
    return dict(table.scan()), [table.history(key) for key in keys], table.version


def test_a_forged_state_file_never_gives_another_value(
    fuzz: Fuzz, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is as its records say, whatever is in the file; what goes on is right too."""
    monkeypatch.setattr(table_projection, "_CHANGES_MIN", 4)
    monkeypatch.setattr(table_projection, "_CHUNK_KEYS", 3)
    monkeypatch.setattr(table_projection, "_REST_SECONDS", 0.0)
    disk, clock = _store()
    (path,) = [path for path in disk.image() if path.endswith(".state")]
    good = disk.image()[path]
    whole = open_store(disk.crash(0, damage="keep"), clock)
    wanted = _content(whole)
    kill(whole)
    assert wanted[0]["a"] == b"after"

    def check(rng: Random) -> Outcome:
        data = _forged(rng, good)
        if rng.random() < 0.3:
            data = _signed_header(data[:HEADER_BYTES]) + data[HEADER_BYTES:]
        copy = disk.crash(0, damage="keep")
        file = copy.open(path, "write")
        file.truncate(0)
        file.pwrite([data], 0)
        file.fdatasync()
        file.close()
        store = open_store(copy, clock)
        is_used = False
        try:
            assert _content(store) == wanted
            projection = store.log_named("t").projection
            assert isinstance(projection, table_projection.TableProjection)
            is_used = projection._pointer is not None
            version = store.table("t").put("a", b"more")
            assert store.table("t").get("a", at=version - 1) == wanted[1][KEYS.index("a")][-1].value
        finally:
            kill(store)
        return "used" if is_used else "rebuilt"

    outcomes = fuzz.run(0.01, check)
    assert outcomes["rebuilt"]
