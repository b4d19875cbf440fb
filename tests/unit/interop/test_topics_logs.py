"""Logs of topics: several of them, with frames missing or broken, and records that routers made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import stratalog
from stratalog import Gap
from stratalog.interop import Foreign, import_directory, read_directory
from stratalog.interop.model import ForeignRoute
from stratalog.interop.topics import format as topics
from stratalog.interop.topics.segment import (
    SegmentRecord,
    encode_segment,
    positions,
    read_marks,
)
from stratalog.interop.topics.write import _lp, _router, encode_frame


def made(id: int, name: str) -> bytes:
    """The frame that makes a topic."""
    return encode_frame(topics.TOPIC, id, data=_lp(name.encode()) + _lp(b"{}"))


def appended(id: int, first: int, last: int, **more: Any) -> bytes:
    """Frames that append records, each with its number as its data."""
    return b"".join(
        encode_frame(topics.APPEND, id, seq=seq, timestamp=seq, data=b'{"d":%d}' % seq, **more)
        for seq in range(first, last + 1)
    )


def reserved(id: int, number: int) -> bytes:
    """The frame that reserves numbers up to one."""
    return encode_frame(topics.HEAD, id, data=number.to_bytes(8, "little"))


def deleted(id: int, before: int) -> bytes:
    """The frame that deletes records below a number."""
    data = b"\1" + before.to_bytes(8, "little") + b"\0" + bytes(4) + b"\0"
    return encode_frame(topics.DELETE, id, data=data)


def directory(root: Path, logs: dict[str, bytes]) -> Path:
    """A directory with these log files."""
    for name, data in logs.items():
        path = root / "wal" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data + bytes(100))
    return root


def numbers(foreign: Foreign, name: str) -> list[int]:
    """The numbers of the records of a topic."""
    found: list[int] = foreign.topics[name].read_all().column("offset").to_pylist()
    return found


FILE = "wal-0000000000000001.log"


@pytest.mark.parametrize(
    ("older", "newer"), [("shard-01/", ""), ("shard-02/", "shard-00/"), ("", "shard-01/")]
)
def test_the_log_with_the_lower_numbers_of_a_topic_comes_first(
    older: str, newer: str, tmp_path: Path
) -> None:
    """After the number of shards changed: what was in the older log was taken for repeats."""
    logs = {
        older + FILE: made(1, "a") + appended(1, 1, 5) + made(2, "b") + appended(2, 1, 2),
        newer + FILE: appended(1, 6, 8) + deleted(1, 3),
    }
    foreign = read_directory("topics", directory(tmp_path, logs))
    assert numbers(foreign, "a") == [3, 4, 5, 6, 7, 8]
    assert numbers(foreign, "b") == [1, 2]
    assert foreign.problems == []


def test_a_log_without_records_of_a_topic_comes_after_those_that_have_some(tmp_path: Path) -> None:
    """A deletion alone says nothing about its place: it can only delete what was there."""
    logs = {
        FILE: deleted(1, 3),
        "shard-00/" + FILE: made(1, "a") + appended(1, 1, 5),
    }
    assert numbers(read_directory("topics", directory(tmp_path, logs)), "a") == [3, 4, 5]


def test_numbers_that_were_skipped_after_a_crash_are_no_loss(tmp_path: Path) -> None:
    """The server goes on after what it had reserved, twice."""
    data = appended(1, 1, 3) + reserved(1, 20) + appended(1, 21, 22) + reserved(1, 40)
    foreign = read_directory("topics", directory(tmp_path, {FILE: data + appended(1, 41, 41)}))
    assert numbers(foreign, "topic-1") == [1, 2, 3, 21, 22, 41]
    assert foreign.contents["topic-1"].gaps == []
    assert foreign.problems == []


def test_records_of_a_file_that_is_missing_are_a_gap(tmp_path: Path) -> None:
    """They were left out silently, as if they had been deleted."""
    logs = {
        FILE: made(1, "a") + appended(1, 1, 3),
        "wal-0000000000000003.log": appended(1, 7, 8),
    }
    with stratalog.open(tmp_path / "store") as store:
        report = import_directory("topics", directory(tmp_path / "theirs", logs), store)
        items = list(store.topic("a").read())
    assert [item.offset for item in items if not isinstance(item, Gap)] == [1, 2, 3, 7, 8]
    assert [(item.first, item.last) for item in items if isinstance(item, Gap)] == [(4, 6)]
    assert [problem.lost for problem in report.problems] == ["records 4 to 6"]


@pytest.mark.parametrize("place", [0, 4, 20, 40])
def test_a_broken_frame_ends_the_log_and_what_follows_is_named(place: int, tmp_path: Path) -> None:
    """The server ends its log there, whatever byte of the frame is wrong."""
    good = made(1, "a") + appended(1, 1, 2)
    broken = bytearray(appended(1, 3, 3))
    broken[place] ^= 0x10
    data = good + broken + appended(1, 4, 6) + appended(2, 1, 1) + deleted(1, 2)
    foreign = read_directory("topics", directory(tmp_path, {FILE: data}))
    assert numbers(foreign, "a") == [1, 2]
    (problem,) = foreign.problems
    assert problem.position == len(good)
    assert problem.lost == (
        "what that frame and those after it did: records 4 to 6 of topic 1, record 1 of topic 2, "
        "1 other frames"
    )


def test_a_log_that_is_cut_at_any_byte_of_its_last_frame_loses_that_one(tmp_path: Path) -> None:
    """And says so, but for a cut where nothing of it is left."""
    whole = made(1, "a") + appended(1, 1, 3)
    last = appended(1, 4, 4)
    for size in range(len(last)):
        root = tmp_path / str(size)
        (root / "wal").mkdir(parents=True)
        (root / "wal" / FILE).write_bytes(whole + last[:size])
        foreign = read_directory("topics", root)
        assert numbers(foreign, "a") == [1, 2, 3]
        places = [(problem.position, problem.lost) for problem in foreign.problems]
        assert places == ([(len(whole), "what that frame did")] if size else [])


# --- sealed segments ----------------------------------------------------------------------------

SEGMENTS = sorted((Path(__file__).parents[2] / "golden" / "foreign" / "topics").rglob("seg-*.data"))


@pytest.mark.parametrize("path", SEGMENTS, ids=lambda path: f"{path.parts[-6]}-{path.stem}")
def test_segments_and_indexes_have_the_bytes_of_the_server(path: Path) -> None:
    """Decoded and encoded again."""
    data, index = path.read_bytes(), path.with_suffix(".idx").read_bytes()
    records = []
    for position in positions(index):
        head = topics.SEGMENT_FRAME.unpack_from(data, position)
        length, flags, seq, timestamp, node, tag, size = head
        at = position + topics.SEGMENT_FRAME_BYTES
        parts = data[at : at + node], data[at + node : at + node + tag]
        records.append(
            SegmentRecord(
                seq, timestamp, parts[0] if flags & topics.HAS_NODE else None,
                parts[1] if flags & topics.HAS_TAG else None,
                data[at + node + tag : at + node + tag + size],
                data[position + 3 + length] == topics.DELETED,
            )
        )  # fmt: skip
    assert len(records) == 50
    assert encode_segment(records) == (data, index)
    assert read_marks(data).deleted == [record.seq for record in records if record.is_deleted]


@pytest.mark.parametrize("with_index", [True, False])
def test_a_broken_frame_of_a_segment_is_reported(with_index: bool, tmp_path: Path) -> None:
    """The marks after it count if the index says where to go on; damage was passed over."""
    root = directory(tmp_path, {FILE: made(1, "a") + appended(1, 1, 4)})
    data, index = encode_segment(
        SegmentRecord(seq, seq, None, None, b'{"d":1}', is_deleted=seq in (1, 4))
        for seq in range(1, 5)
    )
    broken = bytearray(data)
    broken[len(data) // 4 + 8] ^= 1
    segments = root / "topics" / "00000001"
    segments.mkdir(parents=True)
    (segments / "seg-0000000000000001.data").write_bytes(broken)
    if with_index:
        (segments / "seg-0000000000000001.idx").write_bytes(index)
    foreign = read_directory("topics", root)
    assert numbers(foreign, "a") == ([2, 3] if with_index else [2, 3, 4])
    (problem,) = foreign.problems
    assert problem.path == "topics/00000001/seg-0000000000000001.data"
    assert problem.position == len(data) // 4
    assert problem.lost == "whether records there are marked as deleted"


# --- routers ------------------------------------------------------------------------------------


def routed(name: str, source: str, destination: str, **more: Any) -> bytes:
    """The frame that makes a router."""
    route = ForeignRoute(name, source, destination, **more)
    return encode_frame(topics.ROUTER, 0, data=_router(route))


def test_records_that_routers_made_are_made_again(tmp_path: Path) -> None:
    """The server keeps them in no log: after a kill they were missing."""
    data = b"".join(
        (
            made(1, "a"), made(2, "b"), made(3, "c"),
            routed("bc", "b", "c", keeps_node=True),
            routed("ab", "a", "b", tag="x-*", keeps_tag=True),
            appended(1, 1, 2, tag="x-1", node="n"), appended(1, 3, 3, tag="y"),
            appended(1, 4, 4, tag="x-2"),
        )
    )  # fmt: skip
    foreign = read_directory("topics", directory(tmp_path, {FILE: data}))
    tables = {name: reader.read_all().to_pylist() for name, reader in foreign.topics.items()}
    assert [(row["offset"], row["value"], row["tag"], row["node"]) for row in tables["b"]] == [
        (1, b"1", "x-1", None), (2, b"2", "x-1", None), (3, b"4", "x-2", None),
    ]  # fmt: skip
    assert [(row["offset"], row["value"], row["tag"]) for row in tables["c"]] == [
        (1, b"1", None), (2, b"2", None), (3, b"4", None),
    ]  # fmt: skip
    assert [foreign.contents[name].end for name in "abc"] == [5, 4, 4]
    assert foreign.problems == []


def test_a_cycle_of_routers_ends(tmp_path: Path) -> None:
    """A record is forwarded eight times at most, as by the server."""
    data = b"".join(
        (
            made(1, "a"), made(2, "b"), routed("ab", "a", "b", allows_cycle=True),
            routed("ba", "b", "a", allows_cycle=True), appended(1, 1, 1),
        )
    )  # fmt: skip
    foreign = read_directory("topics", directory(tmp_path, {FILE: data}))
    assert numbers(foreign, "b") == [1]
    (problem,) = foreign.problems  # `a` has records of its own
    assert "'ba'" in problem.what


def test_a_destination_with_records_of_its_own_is_reported(tmp_path: Path) -> None:
    """Which numbers the forwarded ones had cannot be told."""
    data = b"".join(
        (made(1, "a"), made(2, "b"), routed("ab", "a", "b"), appended(1, 1, 3), appended(2, 1, 1))
    )
    foreign = read_directory("topics", directory(tmp_path, {FILE: data}))
    assert numbers(foreign, "b") == [1]
    (problem,) = foreign.problems
    assert problem.lost == "records of 'a' after 0, in 'b' only"
