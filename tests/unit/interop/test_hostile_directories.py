"""Foreign directories as they are found: cut anywhere, with files of others, oddly named."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import stratalog
from stratalog.errors import NotAStoreError, OptionError
from stratalog.interop import export_directory, import_directory, read_directory
from stratalog.interop.fluxmq.write import _Row as Row
from stratalog.interop.fluxmq.write import encode_batch
from stratalog.interop.ledgerq import format as ledgerq

FOREIGN = Path(__file__).parents[2] / "golden" / "foreign"


def values(layout: str, root: Path, name: str) -> tuple[list[bytes], list[str]]:
    """The values of a topic of a directory, and what its problems say is lost."""
    foreign = read_directory(layout, root, name=name if layout == "ledgerq" else None)
    found = foreign.topics[name].read_all().column("value").to_pylist()
    return found, [problem.lost for problem in foreign.problems]


def test_a_segment_of_ledgerq_cut_at_any_byte_of_its_last_entry_loses_that_one(
    tmp_path: Path,
) -> None:
    """Except the four bytes after it, which no checksum covers."""
    with stratalog.open(":memory:") as store:
        store.queue("jobs").put_many([b"one", b"two"])
        store.queue("jobs").put(b"three", headers={"a": b"b"}, ttl=1e6)
        export_directory("ledgerq", store, "jobs", tmp_path / "theirs")
    (segment,) = (tmp_path / "theirs").glob("*.log")
    for index in (tmp_path / "theirs").glob("*.idx"):
        index.unlink()  # written when a segment is closed, which a killed writer does not
    data = segment.read_bytes()
    start = ledgerq.HEADER_BYTES
    for _ in range(2):
        start += int.from_bytes(data[start : start + 4], "little") + ledgerq.PADDING_BYTES
    for size in range(start, len(data)):
        segment.write_bytes(data[:size])
        is_whole = size >= len(data) - ledgerq.PADDING_BYTES
        found, lost = values("ledgerq", tmp_path / "theirs", "q")
        assert found == [b"one", b"two", b"three"][: 3 if is_whole else 2]
        assert lost == ([] if is_whole else ["message 3"])


def test_a_segment_of_fluxmq_cut_at_any_byte_of_its_last_batch_loses_that_one(
    tmp_path: Path,
) -> None:
    """Its records are named as soon as its header is whole."""
    first = encode_batch([Row(0, 1000, None, b"one", [])])
    last = encode_batch([Row(1, 1000, b"k", b"two", []), Row(2, 1001, None, b"three", [])])
    segments = tmp_path / "queues" / "q" / "segments"
    segments.mkdir(parents=True)
    for size in range(len(last) + 1):
        (segments / f"{0:020d}.seg").write_bytes(first + last[:size])
        found, lost = values("fluxmq", tmp_path, "q")
        if size in (0, len(last)):
            assert (found, lost) == ([b"one", b"two", b"three"][: 3 if size else 1], [])
        else:
            named = "records 1 to 2" if size >= 44 else "the records of that batch"
            assert (found, lost) == ([b"one"], [named])


def test_a_queue_of_fluxmq_whose_name_has_a_slash_is_found(tmp_path: Path) -> None:
    """It is a directory inside another there; nothing was imported, without a word."""
    theirs = tmp_path / "theirs"
    shutil.copytree(FOREIGN / "fluxmq" / "group_compacted" / "data", theirs)
    for part in ("queues", "groups"):
        (theirs / part / "eu").mkdir()
        (theirs / part / "orders").rename(theirs / part / "eu" / "größe 1")
    with stratalog.open(":memory:") as store:
        report = import_directory("fluxmq", theirs, store)
        assert report.topics == {"audit": 10, "eu/größe 1": 60}
        assert report.groups == ["audit/readers", "eu/größe 1/workers"]
        assert len(store.topic("eu/größe 1").group("workers").pending()) == 18


def test_files_that_do_not_belong_there_are_passed_over(tmp_path: Path) -> None:
    """A file where queues are, an empty directory, and one without segments."""
    theirs = tmp_path / "theirs"
    shutil.copytree(FOREIGN / "fluxmq" / "none" / "data", theirs)
    (theirs / "queues" / ".DS_Store").write_bytes(b"\0" * 100)
    (theirs / "queues" / "empty").mkdir()
    (theirs / "queues" / "other" / "consumers" / "g").mkdir(parents=True)
    (theirs / "queues" / "events" / "segments" / "notes.txt").write_text("mine")
    foreign = read_directory("fluxmq", theirs)
    assert list(foreign.contents) == ["events"]
    assert foreign.topics["events"].read_all().num_rows == 305
    assert foreign.problems == []


def test_a_cold_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """A misspelt path brought deleted records back; an empty directory is one without segments."""
    theirs = FOREIGN / "topics" / "shard1_cold_clean" / "data" / "hot"
    with pytest.raises(NotAStoreError, match="is not there"):
        read_directory("topics", theirs, cold=tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    assert read_directory("topics", theirs, cold=tmp_path / "empty").problems == []


@pytest.mark.parametrize(
    ("layout", "name"), [("topics", "größe"), ("topics", "a/b"), ("topics", "-a"), ("fluxmq", "..")]
)
def test_a_name_that_the_other_system_has_not_leaves_no_directory(
    layout: str, name: str, tmp_path: Path
) -> None:
    """An export that failed half way could not be repeated: the directory was not empty."""
    with stratalog.open(":memory:") as store:
        store.topic("a").append(b"x")
        store.topic(name).append(b"x")
        with pytest.raises(OptionError, match="cannot be the name"):
            export_directory(layout, store, None, tmp_path / "out")
        assert export_directory(layout, store, ["a", "a"], tmp_path / "out").records == 1


def test_a_record_that_expires_still_does_in_fluxmq(tmp_path: Path) -> None:
    """Its expiry was left out, and it stayed there for ever."""
    with stratalog.open(":memory:") as store, stratalog.open(":memory:") as other:
        topic = store.topic("a")
        topic.append(b"x", ttl=1e6, headers={"h": b"1"})
        topic.append(b"y", headers={"_expires_at": b"4102444800000"})
        topic.append(b"z")
        export_directory("fluxmq", store, None, tmp_path / "out")
        import_directory("fluxmq", tmp_path / "out", other)
        ours, theirs = list(topic.records()), list(other.topic("a").records())
        rounded = -(-ours[0].expires_at // 10**6)
        assert [record.expires_at for record in theirs] == [
            rounded * 10**6, 4102444800000 * 10**6, 0,
        ]  # fmt: skip
        assert dict(theirs[0].headers) == {"h": b"1", "_expires_at": b"%d" % rounded}
        assert [dict(record.headers) for record in theirs[1:]] == [
            dict(record.headers) for record in ours[1:]
        ]
