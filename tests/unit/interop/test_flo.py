"""Directories of Flo, from the examples of its format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from crc32c import crc32c

import stratalog
from stratalog.errors import (
    CorruptionError,
    NotAStoreError,
    OptionError,
    TooLargeError,
    TopicExistsError,
    UnsupportedVersionError,
)
from stratalog.fs import PosixFileSystem
from stratalog.handles.store import Store
from stratalog.interop import export_directory, import_directory
from stratalog.interop.flo import format as flo
from stratalog.interop.flo.read import read
from stratalog.interop.flo.snapshot import Snapshot, decode_snapshot, encode_snapshot
from stratalog.interop.flo.write import NOOP, encode_entry, encode_segment
from stratalog.interop.model import SCHEMA, Foreign
from stratalog.options import StoreOptions
from stratalog.testing import ManualClock

# The example of a segment: a put of `user:1` and an entry of Raft's own.
EXAMPLE = bytes.fromhex(
    "464c4f5f53454700010007000000010000000000000002000000000000000100"
    "2a36fe9c971702002a36fe9c9717020000006500000000020000000000000000"
    "01e0100a010100000100000000000000010000000000000001002a36fe9c9717"
    "150000009fb338dc3412cdab060005000000757365723a31616c69636501e010"
    "0a01f100000100000000000000020000000000000002002a36fe9c9717000000"
    "004cd14dc5010000000000000000000000a50000000100000002000200000000"
    "002ca58f0400000000464c4f5f454e4400"
)


def entry(index: int, type: int, key: bytes, value: bytes, flags: int = 0) -> bytes:
    """An entry of the log."""
    payload = flo.COMMAND.pack(0, len(key), len(value)) + key + value
    head = flo.ENTRY.pack(
        flo.ENTRY_MAGIC, 1, type, flags, 1, index, 10**18 + index, len(payload), 0
    )[:-4]
    return head + crc32c(head + payload).to_bytes(4, "little") + payload


def segment(entries: list[bytes], first: int = 1, committed: int = 0) -> bytes:
    """A sealed segment."""
    data = b"".join(entries)
    head = flo.SEGMENT.pack(
        flo.SEGMENT_MAGIC, 1, 0, first, first + len(entries) - 1, 10**18, 10**18, len(entries),
        len(data), 0, committed, 0,
    )  # fmt: skip
    body = head + data + flo.INDEX.pack(first, 0)
    place = len(head + data)
    return body + flo.FOOTER.pack(place, 1, 0, 0, crc32c(body), 0, flo.FOOTER_MAGIC)


def write(root: Path, *segments: tuple[int, bytes]) -> str:
    """A data directory with one shard."""
    for first, data in segments:
        write_to(root / "00000" / "segs", first, data)
    return str(root)


def write_to(directory: Path, first: int, data: bytes) -> None:
    """Write a segment."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{first:010d}.flseg").write_bytes(data)


def rows(foreign: Foreign, name: str) -> list[dict[str, Any]]:
    """Records of one name."""
    table = pa.Table.from_batches(list(foreign.contents[name].batches()), SCHEMA)
    found: list[dict[str, Any]] = table.to_pylist()
    return found


def test_the_example_of_the_format_is_read(tmp_path: Path) -> None:
    """One key of a namespace whose name is not known."""
    assert len(EXAMPLE) == 209
    foreign = read(PosixFileSystem(), write(tmp_path, (1, EXAMPLE)))
    assert foreign.problems == []
    (row,) = rows(foreign, "abcd1234.kv")
    assert (row["offset"], row["key"], row["value"]) == (1, b"user:1", b"alice")


def test_the_examples_of_the_format_are_written() -> None:
    """A segment of two entries, and the smallest one there is, byte for byte."""
    key, value = b"user:1", b"alice"
    payload = flo.COMMAND.pack(0xABCD1234, len(key), len(value)) + key + value
    stamps = 1700000000000000001, 1700000000000000002
    entries = [
        (1, stamps[0], flo.KV_PUT, encode_entry(flo.KV_PUT, 1, stamps[0], payload)),
        (2, stamps[1], NOOP, encode_entry(NOOP, 2, stamps[1], b"")),
    ]
    written = bytearray(encode_segment(entries, commit_index=2))
    written[10] = 7  # the example is of another partition
    body = bytes(written[: -flo.FOOTER_BYTES])
    footer = list(flo.FOOTER.unpack(written[-flo.FOOTER_BYTES :]))
    footer[4] = crc32c(body)
    assert body + flo.FOOTER.pack(*footer) == EXAMPLE
    empty = encode_segment([], commit_index=0)
    assert (len(empty), flo.FOOTER.unpack(empty[-flo.FOOTER_BYTES :])[4]) == (96, 0x9AFC5B77)


def test_everything_finds_its_kind(tmp_path: Path) -> None:
    """Keys, streams, and queues with what was consumed and given back."""
    priority = (7).to_bytes(4, "little")
    entries = [
        entry(1, flo.KV_PUT, b"a", b"1"),
        entry(2, flo.STREAM_APPEND, b"events", b"x"),
        entry(3, flo.QUEUE_PUT, b"jobs", priority + b"one"),
        entry(4, flo.QUEUE_PUT, b"jobs", priority + b"two"),
        entry(5, flo.QUEUE_ACK, (3).to_bytes(8, "little"), b""),
        entry(6, flo.QUEUE_NACK, (4).to_bytes(8, "little"), b""),
        entry(7, flo.KV_DELETE, b"a", b""),
        entry(8, 0x50, b"w", b"?"),
    ]
    foreign = read(PosixFileSystem(), write(tmp_path, (1, segment(entries))))
    assert [(row["key"], row["value"], row["operation"]) for row in rows(foreign, "kv")] == [
        (b"a", b"1", 0),
        (b"a", None, 1),
    ]
    assert [row["offset"] for row in rows(foreign, "events")] == [2]
    jobs = foreign.contents["jobs"]
    assert [(row["value"], row["priority"]) for row in rows(foreign, "jobs")] == [
        (b"one", 7),
        (b"two", 7),
    ]
    assert jobs.done == [3]
    assert [(one.offset, one.delivery_count) for one in jobs.pending] == [(4, 1)]
    assert [problem.what for problem in foreign.problems] == [
        "1 entries of type 0x50 have no counterpart."
    ]


def test_a_flipped_bit_costs_one_entry(tmp_path: Path) -> None:
    """The segment's checksum and the entry's say so; the next entry is read."""
    entries = [entry(number, flo.STREAM_APPEND, b"s", b"v" * 9) for number in range(1, 4)]
    data = bytearray(segment(entries))
    data[flo.SEGMENT_BYTES + len(entries[0]) + 45] ^= 4
    foreign = read(PosixFileSystem(), write(tmp_path, (1, bytes(data))))
    assert [row["offset"] for row in rows(foreign, "s")] == [1, 3]
    assert [problem.position for problem in foreign.problems] == [
        len(data) - flo.FOOTER_BYTES,
        flo.SEGMENT_BYTES + len(entries[0]),
    ]


def test_entries_after_a_cut_are_void(tmp_path: Path) -> None:
    """A cut that was begun counts as done."""
    entries = [entry(number, flo.STREAM_APPEND, b"s", b"v") for number in range(1, 6)]
    path = write(tmp_path, (1, segment(entries)))
    (tmp_path / "00000" / "segs" / "TRUNCATE").write_text("3\n")
    assert [row["offset"] for row in rows(read(PosixFileSystem(), path), "s")] == [1, 2, 3]


def test_entries_that_may_not_be_committed_are_held_back(tmp_path: Path) -> None:
    """Consensus has to confirm what is after the newest commit index."""
    entries = [entry(number, flo.STREAM_APPEND, b"s", b"v") for number in range(1, 6)]
    foreign = read(PosixFileSystem(), write(tmp_path, (1, segment(entries, committed=4))))
    assert [row["offset"] for row in rows(foreign, "s")] == [1, 2, 3, 4]
    assert "may not be committed" in foreign.problems[0].what


def test_an_unfinished_cut_is_refused(tmp_path: Path) -> None:
    """Two segments that have the same index."""
    one = segment([entry(1, flo.STREAM_APPEND, b"s", b"v")])
    two = segment([entry(1, flo.STREAM_APPEND, b"s", b"w")])
    with pytest.raises(CorruptionError, match="a cut was begun"):
        read(PosixFileSystem(), write(tmp_path, (1, one), (2, two)))


def test_a_newer_version_and_other_directories_are_refused(tmp_path: Path) -> None:
    """Each with an error of its own."""
    with pytest.raises(NotAStoreError, match="is not a directory of Flo"):
        read(PosixFileSystem(), str(tmp_path))
    data = bytearray(EXAMPLE)
    data[8] = 2
    with pytest.raises(UnsupportedVersionError, match="version 2"):
        read(PosixFileSystem(), write(tmp_path, (1, bytes(data))))


def test_segments_that_are_missing_are_reported(tmp_path: Path) -> None:
    """Flo drops segments that a snapshot covers, whose encoding is not known."""
    one = segment([entry(3, flo.STREAM_APPEND, b"s", b"c")], first=3)
    two = segment([entry(6, flo.STREAM_APPEND, b"s", b"f")], first=6)
    foreign = read(PosixFileSystem(), write(tmp_path, (3, one), (6, two)))
    assert [row["offset"] for row in rows(foreign, "s")] == [3, 6]
    assert [problem.what for problem in foreign.problems] == [
        "No segment has the entries 1 to 2.", "No segment has the entries 4 to 5.",
    ]  # fmt: skip


def test_shards_number_their_entries_apart(tmp_path: Path) -> None:
    """Keys of both are one table, and an acknowledgement counts in its own shard alone."""
    number = (1).to_bytes(8, "little")
    first = [
        entry(1, flo.QUEUE_PUT, b"q", bytes(4) + b"one"), entry(2, flo.KV_PUT, b"a", b"1"),
        entry(3, flo.QUEUE_ACK, number, b""),
    ]  # fmt: skip
    second = [
        entry(1, flo.QUEUE_PUT, b"other", bytes(4) + b"two"), entry(2, flo.KV_PUT, b"b", b"2"),
    ]  # fmt: skip
    write(tmp_path, (1, segment(first)))
    directory = tmp_path / "00001" / "segs"
    directory.mkdir(parents=True)
    (directory / "0000000001.flseg").write_bytes(segment(second))
    foreign = read(PosixFileSystem(), str(tmp_path))
    assert [(row["offset"], row["key"]) for row in rows(foreign, "kv")] == [(1, b"a"), (2, b"b")]
    assert (foreign.contents["q"].done, foreign.contents["other"].done) == ([1], [])


def test_points_become_a_series_and_go_back(tmp_path: Path) -> None:
    """A point keeps its time, key and bytes; export, then import, gives the same points."""
    keys = [b"cpu", b"", b"\xff", b"a=b, c" * 300]
    entries = [
        entry(number, flo.SERIES_WRITE, key, b"\0payload") for number, key in enumerate(keys, 5)
    ]
    with stratalog.open(tmp_path / "store") as store:
        theirs = write(tmp_path / "theirs", (5, segment(entries, 5)))
        report = import_directory("flo", theirs, store)
        assert report.topics == {"series": 4}
        series = store.series("series")
        times, values = series.read(tags={"series": "cpu"}, field="payload")
        assert (times.tolist(), list(values)) == ([10**18 + 5], [b"\0payload".hex()])
        assert [record.offset for record in store.topic("series").records()] == [5, 6, 7, 8]
        store.series("ours").write_many(
            [1.0, 2.0], {"load": [0.5, 0.7], "n": [1, 2]}, tags={"host": ["a", "b"]}
        )
        export_directory("flo", store, None, tmp_path / "out")
        assert import_directory("flo", theirs, store).topics == {"series": 0}
        with stratalog.open(tmp_path / "again") as again:
            report = import_directory("flo", tmp_path / "out", again)
            assert sorted(report.topics.items()) == [("ours", 1), ("series", 4)]
            assert report.problems == []
            for name in ("series", "ours"):
                assert again.series(name).latest() == store.series(name).latest()
            again.series("ours").write({"load": 1.0}, tags={"host": "c"})
            assert len(again.series("ours")) == 3
    found = read(PosixFileSystem(), str(tmp_path / "out"))
    assert [row["key"] for row in rows(found, "series")] == keys


def test_a_number_or_a_time_that_cannot_be_is_reported(tmp_path: Path) -> None:
    """An entry without a number is lost; one without a time keeps its record."""
    payload = flo.COMMAND.pack(0, 1, 1) + b"sv"
    entries = [
        encode_entry(flo.STREAM_APPEND, 1, 10**18, payload),
        encode_entry(flo.STREAM_APPEND, 2, -(1 << 63), payload),
        encode_entry(flo.STREAM_APPEND, 3, (1 << 63) - 1, payload),
        encode_entry(flo.STREAM_APPEND, (1 << 64) - 1, 10**18, payload),
    ]
    with stratalog.open(tmp_path / "store") as store:
        theirs = write(tmp_path / "theirs", (1, segment(entries)))
        report = import_directory("flo", theirs, store)
        assert report.topics == {"s": 3}
        assert [record.timestamp for record in store.topic("s").records()] == [10**18] * 3
        lost = [problem.lost for problem in report.problems]
        assert lost[:3] == ["the time of entry 2", "the time of entry 3", "it"]


def test_a_stream_that_begins_at_a_huge_index_is_imported_and_exported(tmp_path: Path) -> None:
    """Neither takes memory by the number: an export numbers anew what has too many holes."""
    first = 10**12
    entries = [entry(first + at, flo.STREAM_APPEND, b"s", b"v") for at in range(3)]
    with stratalog.open(tmp_path / "store") as store:
        theirs = write(tmp_path / "theirs", (first, segment(entries, first)))
        import_directory("flo", theirs, store)
        assert [record.offset for record in store.topic("s").records()] == [
            first, first + 1, first + 2,
        ]  # fmt: skip
        export_directory("flo", store, None, tmp_path / "out")
    found = read(PosixFileSystem(), str(tmp_path / "out"))
    assert [row["offset"] for row in rows(found, "s")] == [1, 2, 3]


# --- tables -------------------------------------------------------------------------------------


def test_keys_become_a_table_whose_versions_are_indexes(tmp_path: Path) -> None:
    """Puts, deletions and keys that are no text; a stream in between makes nothing unknown."""
    entries = [
        entry(1, flo.KV_PUT, b"ada", b"1"),
        entry(2, flo.STREAM_APPEND, b"s", b"x"),
        entry(3, flo.KV_PUT, b"bob", b"2"),
        entry(4, flo.KV_PUT, b"ada", b"3"),
        entry(5, flo.KV_PUT, b"\xff\0", b"4"),
        entry(6, flo.STREAM_APPEND, b"s", b"y"),
        entry(7, flo.KV_DELETE, b"bob", b""),
        entry(8, flo.KV_PUT, b"eve", b"5", flo.TOMBSTONE),
    ]
    theirs = write(tmp_path / "theirs", (1, segment(entries)))
    with stratalog.open(tmp_path / "store") as store:
        report = import_directory("flo", theirs, store)
        assert (report.topics, report.problems) == ({"kv": 6, "s": 2}, [])
        assert store.tables() == ["kv"]
        assert import_directory("flo", theirs, store).records == 0
    for _ in range(2):  # as it is left, and as it is found again
        with stratalog.open(tmp_path / "store") as store:
            table = store.table("kv")
            assert dict(table.scan()) == {"ada": b"3", b"\xff\0": b"4"}
            assert [(one.version, one.value) for one in table.history("ada")] == [
                (1, b"1"), (4, b"3"),
            ]  # fmt: skip
            assert [one.value for one in table.history("bob")] == [b"2", None]
            assert table.get("ada", at=2) == b"1"
            assert table.get("bob", at=2) is None
            assert table.get("bob", at=6) == b"2"
            assert table.get("eve") is None
            store.rebuild("kv")
            assert table.get("bob", at=1) is None
            store.snapshot()
    with stratalog.open(tmp_path / "store") as store:
        assert store.table("kv").put("ada", b"6", if_version=4) == 9


def test_a_table_goes_to_flo_and_comes_back(tmp_path: Path) -> None:
    """Values, versions, deletions and times to live; versions are kept where there is one topic."""
    with stratalog.open(tmp_path / "store") as store:
        table = store.table("kv")
        table.put("nothing", b"version 0 has no index there")
        table.put_many({"ada": b"1", "bob": b"2", b"\xfe": b"bytes"})
        table.put("ada", b"3", ttl=3600.0)
        table.delete("bob")
        table.add("hits", 7)
        export_directory("flo", store, "kv", tmp_path / "out")
        with stratalog.open(tmp_path / "again") as again:
            report = import_directory("flo", tmp_path / "out", again)
            assert (report.topics, report.problems) == ({"kv": 7}, [])
            found = again.table("kv")
            assert list(found.scan()) == list(table.scan())
            for key in ("ada", "bob", b"\xfe", "hits"):
                assert [one.value for one in found.history(key)] == [
                    one.value for one in table.history(key)
                ]
                assert [one.expires_at for one in found.history(key)] == [
                    one.expires_at for one in table.history(key)
                ]
            export_directory("flo", again, "kv", tmp_path / "out2")
    for name in ("00000/segs/0000000001.flseg", ".stratalog_state.json"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "out2" / name).read_bytes()


def test_several_tables_share_the_keys_of_flo(tmp_path: Path) -> None:
    """A table's name goes before its keys, and one of a namespace stays in it."""
    with stratalog.open(tmp_path / "store") as store:
        theirs = write(tmp_path / "theirs", (1, EXAMPLE))
        import_directory("flo", theirs, store)
        store.table("kv").put("ada", b"1")
        store.table("users").put("ada", b"2")
        store.table("users").put("ada:bob", b"3")
        store.topic("abcd1234.events").append(b"x")
        export_directory("flo", store, None, tmp_path / "out")
        with stratalog.open(tmp_path / "again") as again:
            report = import_directory("flo", tmp_path / "out", again)
            assert report.problems == []
            assert again.tables() == store.tables() == ["abcd1234.kv", "kv", "users"]
            for name in store.tables():
                assert list(again.table(name).scan()) == list(store.table(name).scan())
            assert again.topic("abcd1234.events").read_values() == [b"x"]
        (tmp_path / "out" / ".stratalog_state.json").unlink()
        found = read(PosixFileSystem(), str(tmp_path / "out"))
        keys = [row["key"] for row in rows(found, "kv")]
        assert keys == [b"ada", b"users:ada", b"users:ada:bob"]
        assert [row["key"] for row in rows(found, "abcd1234.kv")] == [b"user:1"]
        store.table("kv").put("users:eve", b"4")
        with pytest.raises(OptionError, match="Export the tables apart"):
            export_directory("flo", store, None, tmp_path / "other")


def test_a_key_that_has_expired_is_deleted_in_an_export(tmp_path: Path) -> None:
    """Else its older value would be back, also where a read-only store cannot say so itself."""
    clock = ManualClock(10**18)
    with Store(str(tmp_path / "store"), StoreOptions(), clock=clock, background=False) as store:
        store.table("kv").put("ada", b"1")
        store.table("kv").put("ada", b"2", ttl=1.0)
        store.table("kv").put("bob", b"3")
        clock.advance(5.0)
        export_directory("flo", store, None, tmp_path / "out")
    with stratalog.open(tmp_path / "again") as again:
        import_directory("flo", tmp_path / "out", again)
        assert dict(again.table("kv").scan()) == {"bob": b"3"}


def test_what_is_not_known_of_keys_is_reported(tmp_path: Path) -> None:
    """Times to live, batches, counters: the rest is imported, and nothing is made up."""
    entries = [
        entry(1, flo.KV_PUT, b"a", b"\x01\x02rest", flo.TTL),
        entry(2, flo.KV_ADD, b"n", b"\x01"),
        entry(3, flo.KV_PUT, b"b", b"1"),
    ]
    with stratalog.open(tmp_path / "store") as store:
        report = import_directory("flo", write(tmp_path / "theirs", (1, segment(entries))), store)
        assert dict(store.table("kv").scan()) == {"a": b"\x01\x02rest", "b": b"1"}
        assert [one.expires_at for one in store.table("kv").history("a")] == [0]
    first, second = report.problems
    assert first.what == "1 entries kv_incr are in an encoding not known."
    assert second.what.startswith("1 puts of 'kv' have a time to live")
    assert second.lost == "when these keys expire: they stay until they are deleted"


def test_a_table_that_is_there_is_not_mixed_with_another(tmp_path: Path) -> None:
    """Nor is a topic of its name; nothing is written."""
    theirs = write(tmp_path / "theirs", (1, segment([entry(1, flo.KV_PUT, b"a", b"1")])))
    with stratalog.open(tmp_path / "store") as store:
        store.table("kv").put_many({"z": b"9", "y": b"8"})
        with pytest.raises(TopicExistsError, match="holds other records"):
            import_directory("flo", theirs, store)
        assert dict(store.table("kv").scan()) == {"y": b"8", "z": b"9"}
        store.drop_table("kv")
        store.topic("kv")
        with pytest.raises(TopicExistsError):
            import_directory("flo", theirs, store)
        import_directory("flo", theirs, store, name="old")
        assert store.table("old.kv")["a"] == b"1"


def test_a_key_that_flo_cannot_have_is_refused(tmp_path: Path) -> None:
    """Its length is a number of 16 bits."""
    with stratalog.open(tmp_path / "store") as store:
        store.table("kv").put("k" * 65536, b"")
        with pytest.raises(TooLargeError, match="at most 65535"):
            export_directory("flo", store, None, tmp_path / "out")


@pytest.mark.parametrize(
    "text", [b"{", b'{"version": 2}', b'{"version": 1, "expires_at": {"1": -4}}', b"[]", b"\xf5"]
)
def test_a_state_of_ours_that_is_damaged_costs_names_and_times(text: bytes, tmp_path: Path) -> None:
    """The keys are there, under the name that they have without it."""
    theirs = write(tmp_path, (1, segment([entry(1, flo.KV_PUT, b"users:a", b"1")])))
    (tmp_path / ".stratalog_state.json").write_bytes(text)
    foreign = read(PosixFileSystem(), theirs)
    assert [row["key"] for row in rows(foreign, "kv")] == [b"users:a"]
    (problem,) = foreign.problems
    assert (problem.path, problem.lost) == (
        ".stratalog_state.json", "the names of tables, and when their keys expire",
    )  # fmt: skip


# --- snapshots ----------------------------------------------------------------------------------

SNAPSHOT = bytes.fromhex(
    "464c4f5f534e5000020007000000020000000000000001000000000000000300"
    "2a36fe9c9717010000005f000000000000000000000000000000000000000000"
    "0400000003000000000000006162633c104d9e464c4f5f534e450000000000"
)


def test_the_example_of_a_snapshot_is_read_and_written() -> None:
    """Byte for byte; any change of it is noticed."""
    found = decode_snapshot(SNAPSHOT)
    assert found == Snapshot(7, 2, 1, 1700000000000000003, {4: b"abc"})
    assert encode_snapshot(found) == SNAPSHOT
    for place in range(len(SNAPSHOT) - 4):  # the last four are reserved
        damaged = bytearray(SNAPSHOT)
        damaged[place] ^= 1
        with pytest.raises(ValueError, match="snapshot"):
            decode_snapshot(bytes(damaged))
        with pytest.raises(ValueError, match="snapshot"):
            decode_snapshot(SNAPSHOT[:place])


@pytest.mark.parametrize("place", ["snaps", "."])
def test_a_snapshot_says_where_entries_are_that_no_segment_has(place: str, tmp_path: Path) -> None:
    """With segments after it, and with none at all; one that is damaged is reported."""
    shard = tmp_path / "00000"
    (shard / place).mkdir(parents=True, exist_ok=True)
    (shard / place / "0000000002-1700000000000000003.fsnap").write_bytes(SNAPSHOT)
    foreign = read(PosixFileSystem(), str(tmp_path))
    wanted = "entries 1 to 2: their state is in a snapshot, in an encoding that is not known"
    assert [problem.lost for problem in foreign.problems] == [wanted]
    after = segment([entry(3, flo.STREAM_APPEND, b"s", b"c")], first=3)
    write_to(shard / "segs", 3, after)
    foreign = read(PosixFileSystem(), str(tmp_path))
    assert [problem.lost for problem in foreign.problems] == [wanted]
    assert [row["offset"] for row in rows(foreign, "s")] == [3]
    (shard / place / "0000000009-1700000000000000004.fsnap").write_bytes(SNAPSHOT[:-1])
    foreign = read(PosixFileSystem(), str(tmp_path))
    assert [problem.what for problem in foreign.problems] == [
        "The snapshot does not match its checksum.", "No segment has the entries 1 to 2.",
    ]  # fmt: skip
