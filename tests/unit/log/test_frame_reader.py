"""Many small frames of the log, read at once: whatever is between them or wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import OpenStore

from stratalog import Record
from stratalog.errors import CorruptionError
from stratalog.format.batch import Batch
from stratalog.format.runs import Int64s
from stratalog.handles.store import Store
from stratalog.handles.topic import Topic
from stratalog.log import frame_reader as frames
from stratalog.log.index import FrameIndex, FramePlace
from stratalog.log.topic import TopicLog

COUNT = 100


def _append_each(topic: Topic) -> list[Record]:
    """Records of all kinds, synced one by one; what is to be read."""
    for number in range(COUNT):
        value = b"%d" % number * (number % 7)
        if number % 5 == 1:
            topic.append(value, key=b"k%d" % number, tag="tag")
        elif number % 5 == 2:
            topic.append(None, key=b"gone", node="eu-1")
        elif number % 5 == 3:
            topic.append(value, ttl=3600.0)
        else:
            topic.append(value)
    return [record for record in topic.read() if isinstance(record, Record)]


def _one_by_one(monkeypatch: pytest.MonkeyPatch, topic: Topic) -> list[Record]:
    with monkeypatch.context() as patch:
        patch.setattr(frames, "_MANY_FRAMES", 1 << 30)
        return [record for record in topic.read() if isinstance(record, Record)]


def _flip(topic: Topic, number: int) -> FramePlace:
    """Change the last bit of a frame; returns where that is."""
    place = topic.log.index.place(number)
    with Path(topic.log.reader.path(place.file)).open("r+b") as file:
        file.seek(place.position + place.length - 1)
        byte = file.read(1)
        file.seek(place.position + place.length - 1)
        file.write(bytes([byte[0] ^ 1]))
    return place


def _in_turn(open_store: OpenStore, large: int = -1) -> tuple[Topic, Topic]:
    """Two topics whose frames alternate in one file; one of the other's may be large."""
    store = open_store(shards=1)
    topic, other = store.topic("t"), store.topic("other")
    for number in range(COUNT):
        topic.append(b"%d" % number)
        other.append(bytes(20_000 if number == large else 50))
    return topic, other


def _plain(topic: Topic) -> None:
    topic.append(b"plain")


def _with_headers(topic: Topic) -> None:
    topic.append(b"h", headers={"h": b"v"})


def _many(topic: Topic) -> None:
    topic.append_many([b"1", b"2", b"3"])


def _records(topic: Topic) -> None:
    topic.append_many([Record(b"1", key=b"k"), Record(b"2")])


def _large(topic: Topic) -> None:
    topic.append(bytes(20_000))


@pytest.mark.parametrize("other", [_plain, _with_headers, _many, _records, _large])
def test_frames_at_once_are_what_they_are_one_by_one(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, other: Callable[[Topic], None]
) -> None:
    """Frames of one record and any columns, and another kind now and then."""
    topic = open_store(shards=1).topic("t")
    for _ in range(3):
        _append_each(topic)
        other(topic)
    together = [record for record in topic.read() if isinstance(record, Record)]
    assert together == _one_by_one(monkeypatch, topic)
    assert [record.offset for record in together] == list(range(topic.next_offset))


def test_frames_of_other_topics_between_them_do_no_harm(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small ones are read along, large ones end what is read at once."""
    topic, other = _in_turn(open_store, large=50)
    assert topic.read_values() == [b"%d" % number for number in range(COUNT)]
    assert list(topic.read()) == _one_by_one(monkeypatch, topic)
    assert len(other.read_values()) == COUNT


@pytest.mark.parametrize(("start", "limit"), [(0, 17), (3, 40), (50, None), (99, 1), (90, 30)])
def test_a_part_of_them_is_that_part(open_store: OpenStore, start: int, limit: int | None) -> None:
    """From the middle of what would be read at once, to the middle of it."""
    topic = open_store(shards=1).topic("t")
    records = _append_each(topic)
    end = None if limit is None else start + limit
    assert list(topic.read(start, limit=limit)) == records[start:end]


def test_one_damaged_frame_among_many_is_named(open_store: OpenStore) -> None:
    """Those before it are served, it is not, and the error says where it is."""
    store: Store = open_store(shards=1)
    topic = store.topic("t")
    records = _append_each(topic)
    place = _flip(topic, 60)
    read = topic.read()
    assert [next(read) for _ in range(60)] == records[:60]
    where = rf"position {place.position}: .* \(topic 't', offsets 60 to 60\)"
    with pytest.raises(CorruptionError, match=where):
        next(read)
    assert list(topic.read(61)) == records[61:]


@pytest.mark.parametrize("durability", ["ephemeral", "fsync"])
def test_frames_that_are_not_close_together_are_not_looked_for_together(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    """In memory, or far apart: a look at all that follow, for each of them, would be quadratic."""
    store = open_store(shards=1)
    topic = store.create_topic("t", durability=durability)
    other = store.topic("other")
    for number in range(40):
        topic.append_many([b"%d" % number])
        other.append(bytes(30_000))
    monkeypatch.setattr(FrameIndex, "numbers", None)
    assert topic.read_values() == [b"%d" % number for number in range(40)]


def test_damage_among_frames_of_other_topics_is_met_once(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of those before it are read at once, not each with another look at all that follow."""
    topic, _ = _in_turn(open_store)
    _flip(topic, 60)
    looks: list[int] = []
    read_many = frames._read_many

    def counted(log: TopicLog, numbers: Int64s, end: int) -> list[Batch]:
        looks.append(end)
        return read_many(log, numbers, end)

    monkeypatch.setattr(frames, "_read_many", counted)
    with pytest.raises(CorruptionError, match="offsets 60 to 60"):
        topic.read_values()
    assert len(looks) < 20  # it looks again a few times, as what is gone may only have moved
    assert topic.read_values(0, 60) == [b"%d" % number for number in range(60)]


@pytest.mark.parametrize("left", [0, 1, 3, 70])
def test_a_file_that_was_cut_in_the_middle_of_a_frame_is_damage(
    open_store: OpenStore, left: int
) -> None:
    """Also where that is no whole number of words, which was a ValueError."""
    topic = open_store(shards=1).topic("t")
    records = _append_each(topic)
    place = topic.log.index.place(60)
    with Path(topic.log.reader.path(place.file)).open("r+b") as file:
        file.truncate(place.position + left)
    read = topic.read()
    assert [next(read) for _ in range(60)] == records[:60]
    with pytest.raises(CorruptionError, match=rf"position {place.position}: .*offsets 60 to 60"):
        next(read)
