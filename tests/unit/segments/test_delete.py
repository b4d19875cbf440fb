"""Deletes: exactly what was meant, counted once, gone in silence and for good."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import OpenStore
from tests.crash.model import Session
from tests.unit.segments.topics import KEYS, check, files, fill, segments, upkeep, value

from stratalog import (
    Gap,
    OffsetOutOfRangeError,
    OptionError,
    ReadOnlyError,
    Record,
    WrongTypeError,
)
from stratalog.handles.store import Store
from stratalog.handles.topic import Topic
from stratalog.testing import FakeDisk, ManualClock

START = 1_700_000_000
"""Seconds, when a `ManualClock` begins. Batches of ten are a second apart."""


@pytest.fixture(params=["log", "open", "sealed", "mixed"])
def topic(request: pytest.FixtureRequest, open_store: OpenStore) -> Topic:
    """Thirty records with tags and keys, in the log, in segments, and in all of them."""
    clock = ManualClock(START * 10**9)
    store = open_store(clock=clock, background=False)
    records = {"sealed": 10, "mixed": 15}.get(request.param, 1000)
    topic = store.create_topic("t", segment_records=records)
    for number in range(3):
        fill(topic, 10, keys=KEYS)
        clock.advance(1)
        if request.param != "log" and not (request.param == "mixed" and number == 2):
            store.checkpoint()
    return topic


@pytest.mark.parametrize(
    ("conditions", "gone"),
    [
        ({"offsets": [0]}, {0}),
        ({"offsets": [3, 3, 17, 29]}, {3, 17, 29}),
        ({"offsets": []}, set()),
        ({"offsets": range(30)}, set(range(30))),
        ({"offsets": (n for n in (5, 25))}, {5, 25}),
        ({"before": 0}, set()),
        ({"before": 13}, set(range(13))),
        ({"before": 30}, set(range(30))),
        ({"before": float(START)}, set()),
        ({"before": START + 0.5}, set(range(10))),
        ({"before": START + 1.0}, set(range(10))),
        ({"before": datetime.fromtimestamp(START + 2, UTC)}, set(range(20))),
        ({"before": START + 1e6}, set(range(30))),
        ({"tag": "t1"}, set(range(1, 30, 3))),
        ({"tag": "t"}, set()),
        ({"tag": ""}, set()),
        ({"tag_glob": "t*"}, set(range(30))),
        ({"tag_glob": "t[02]"}, set(range(0, 30, 3)) | set(range(2, 30, 3))),
        ({"tag_glob": "T*"}, set()),
        ({"key": b"k1"}, {n for n in range(30) if n % 5 == 1}),
        ({"key": bytearray(b"k1")}, {n for n in range(30) if n % 5 == 1}),
        ({"key": b"k"}, set()),
        ({"key": b""}, {n for n in range(30) if n % 5 == 4}),
        ({"key": b"k1", "tag": "t1"}, {1, 16}),
        ({"key": b"k1", "tag_glob": "t[02]", "before": 20}, {6, 11}),
        ({"key": b"k2", "offsets": range(10)}, {2, 7}),
        ({"tag": "t1", "before": 10}, {1, 4, 7}),
        ({"tag": "t1", "tag_glob": "?2"}, set()),
        ({"tag": "t1", "tag_glob": "?1", "before": START + 1.5, "offsets": range(9)}, {1, 4, 7}),
        ({"tag_glob": "*", "offsets": [8, 9]}, {8, 9}),
        ({"before": 9, "offsets": [8, 9]}, {8}),
        ({"before": 9, "offsets": []}, set()),
    ],
)  # fmt: skip
def test_what_meets_every_condition_goes(
    topic: Topic, conditions: dict[str, Any], gone: set[int]
) -> None:
    """The count is exact, a second time it is 0, and every reader passes over it in silence."""
    if not isinstance(conditions.get("offsets", []), list | range):
        conditions = conditions | {"offsets": [5, 25]}
    assert topic.delete(**conditions) == len(gone)
    check(topic, set(range(30)) - gone)
    assert topic.delete(**conditions) == 0
    assert topic.next_offset == 30
    fill(topic, 3)
    check(topic, set(range(33)) - gone)


@pytest.mark.parametrize(
    ("conditions", "error"),
    [
        ({}, OptionError),
        ({"before": None, "tag": None}, OptionError),
        ({"before": "yesterday"}, WrongTypeError),
        ({"before": True}, WrongTypeError),
        ({"before": -1}, OptionError),
        ({"before": -1.5}, OptionError),
        ({"before": float("nan")}, OptionError),
        ({"before": 31}, OffsetOutOfRangeError),
        ({"tag": 3}, WrongTypeError),
        ({"tag": b"t1"}, WrongTypeError),
        ({"tag_glob": b"t*"}, WrongTypeError),
        ({"key": "k1"}, WrongTypeError),
        ({"key": 1}, WrongTypeError),
        ({"offsets": [30]}, OffsetOutOfRangeError),
        ({"offsets": [3, 1 << 62]}, OffsetOutOfRangeError),
        ({"offsets": [-1]}, OptionError),
        ({"offsets": [True]}, WrongTypeError),
        ({"offsets": [1.0]}, WrongTypeError),
        ({"offsets": "12"}, WrongTypeError),
        ({"offsets": 12}, WrongTypeError),
        ({"offsets": [3], "tag": 1}, WrongTypeError),
        ({"offsets": [3], "before": 31}, OffsetOutOfRangeError),
    ],
)
def test_a_wrong_argument_changes_nothing(
    open_store: OpenStore, conditions: dict[str, Any], error: type[Exception]
) -> None:
    """It is an error of the package, and nothing is deleted or written."""
    store = open_store(background=False)
    topic = store.topic("t")
    fill(topic, 30)
    commits = store.stats().commits
    with pytest.raises(error):
        topic.delete(**conditions)
    assert store.stats().commits == commits
    check(topic, range(30))


def test_a_reader_cannot_delete(open_store: OpenStore) -> None:
    """A view is for reading."""
    fill(open_store(background=False).topic("t"), 3)
    view = open_store(read_only=True).topic("t")
    with pytest.raises(ReadOnlyError):
        view.delete(before=1)
    check(view, range(3))


def test_what_comes_later_stays(open_store: OpenStore) -> None:
    """A delete is no rule: the same tag is safe afterwards, also after a replay."""
    with open_store() as store:
        topic = store.topic("t")
        fill(topic, 9)
        assert topic.delete(tag="t0") == 3
        fill(topic, 3)
        check(topic, {1, 2, 4, 5, 7, 8, 9, 10, 11})
        assert topic.delete(tag_glob="*0") == 1
    check(open_store().topic("t"), {1, 2, 4, 5, 7, 8, 10, 11})


def test_a_key_takes_every_version_with_it(open_store: OpenStore) -> None:
    """In a compacted topic an older version must not come back in the place of the newest."""
    store = open_store(background=False)
    topic = store.create_topic("state", compact=True, segment_records=4)
    for number in range(3):
        topic.append_many([Record(b"%d" % number, key) for key in (b"ada", b"bob", b"cy")])
        store.checkpoint()
    topic.append(None, key=b"ada")  # a tombstone is a record with that key, too
    assert topic.delete(key=b"ada") == 4
    for _ in range(2):
        assert {record.key for record in topic.read() if isinstance(record, Record)} == {
            b"bob", b"cy",
        }  # fmt: skip
        store.compact()
    topic.append(b"again", key=b"ada")
    assert topic.delete(key=b"bob") > 0
    values = {record.key: record.value for record in topic.read() if isinstance(record, Record)}
    assert values == {b"ada": b"again", b"cy": b"2"}


def test_a_key_is_found_in_the_cold_store(open_store: OpenStore, tmp_path: Path) -> None:
    """Wherever its records are by now."""
    store = open_store(background=False, cold=str(tmp_path / "cold"), hot_segments=1)
    topic = store.create_topic("t", segment_records=10)
    for _ in range(3):
        fill(topic, 10, keys=KEYS)
        store.compact()
    fill(topic, 3, keys=KEYS)
    assert topic.stats().cold_segments == 2
    assert topic.delete(key=b"k1") == 7
    check(topic, {n for n in range(33) if n % 5 != 1})


def test_consumers_pass_over_a_deleted_key(open_store: OpenStore) -> None:
    """A group delivered a record after it was deleted, because it had read ahead."""
    store = open_store(background=False)
    topic = store.topic("t")
    group = topic.group("g")
    fill(topic, 10, keys=KEYS)
    held = group.poll("c", limit=2)
    assert topic.delete(key=b"k1") == 2
    group.ack(held)  # what is gone can be acknowledged all the same
    assert [one.offset for one in group.poll("c", limit=100)] == [2, 3, 4, 5, 7, 8, 9]
    queue = store.queue("q")
    for number in range(4):
        queue.put(b"%d" % number, dedup_id=f"id-{number}")
    assert queue.topic.delete(key=b"id-2") == 1
    values = [message.value for message in queue.get_many(10)]
    assert values == [b"0", b"1", b"3"]


def test_what_was_evicted_or_expired_is_not_counted(open_store: OpenStore) -> None:
    """It could not be read any more, so it does not count as deleted."""
    clock = ManualClock()
    store = open_store(clock=clock, background=False)
    topic = store.create_topic("t", segment_records=10, retention_records=10, ttl=50.0)
    segments(store, topic, 2)
    store.compact()
    assert topic.delete(offsets=[3, 12]) == 1
    clock.advance(60)
    fill(topic, 2)
    assert topic.delete(before=21) == 1
    assert [item for item in topic.read() if isinstance(item, Gap)] == [Gap(0, 9, "evicted")]


def _reopen(session: Session) -> None:
    session.reopen()


def _kill(session: Session) -> None:
    session.kill()
    session.disk = session.disk.crash(3)
    session.open()


def _drop_log(session: Session) -> None:
    session.snapshot()
    session.snapshot()


LAYERS: list[Callable[[Session], object]] = [
    lambda session: session.store.checkpoint(), lambda session: session.store.compact(),
    lambda session: upkeep(session.store).round(), _drop_log, _reopen, _kill,
]  # fmt: skip


@pytest.mark.parametrize("first", range(len(LAYERS)))
@pytest.mark.parametrize("has_cold", [True, False])
def test_a_deleted_record_never_comes_back(first: int, has_cold: bool) -> None:
    """Whatever is done afterwards, in any order of layers."""
    cold = {"cold": "/cold", "hot_segments": 1} if has_cold else {}
    session = Session(FakeDisk(), ManualClock(), rewrite_ratio=0.2, **cold)
    session.open()
    topic = session.store.create_topic("t", segment_records=10)
    segments(session.store, topic, 3)
    fill(topic, 5)
    living = set(range(35))
    for round_number in range(3):
        if round_number == 0:
            assert topic.delete(tag="t2") == len({n for n in living if n % 3 == 2})
            living -= {n for n in living if n % 3 == 2}
        elif round_number == 1:
            assert topic.delete(before=7) == len({n for n in living if n < 7})
            living -= set(range(7))
        else:
            assert topic.delete(offsets=[12, 13, 34]) == len(living & {12, 13, 34})
            living -= {12, 13, 34}
        for step in LAYERS[first:] + LAYERS[:first]:
            step(session)
            topic = session.store.topic("t")
            check(topic, living)
        fill(topic, 2)
        living |= {topic.next_offset - 2, topic.next_offset - 1}
    check(topic, living)
    session.store.close()


def test_a_view_deletes_along(open_store: OpenStore) -> None:
    """And does not show it again when it has to start from a snapshot."""
    store = open_store(background=False, shards=1, log_file_bytes=8192, log_chunk_bytes=4096)
    topic = store.topic("t")
    fill(topic, 30)
    view = open_store(read_only=True).topic("t")
    check(view, range(30))
    topic.delete(tag="t1")
    check(view, {n for n in range(30) if n % 3 != 1})
    for _ in range(3):
        fill(topic, 100)
        store.snapshot()
    check(view, {n for n in range(330) if n % 3 != 1 or n >= 30})


def test_two_deletes_of_the_same_count_once(open_store: OpenStore) -> None:
    """Both looked before either was written, and both counted."""
    store = open_store()
    topic = store.topic("t")
    fill(topic, 2000)
    counts: list[int] = []
    barrier = threading.Barrier(4)

    def run(number: int) -> None:
        barrier.wait()
        counts.append(topic.delete(before=1500) if number % 2 else topic.delete(tag="t0"))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(counts) == 1500 + len([n for n in range(1500, 2000) if n % 3 == 0])


def test_an_offset_is_looked_up_where_it_is(open_store: OpenStore, tmp_path: Path) -> None:
    """Not in all the segments before it: those in the cold store may not be there."""
    store = open_store(background=False, cold=str(tmp_path / "cold"), hot_segments=1)
    topic = store.create_topic("t", segment_records=2000)
    segments(store, topic, 3, size=2000)
    store.compact()
    for path in (tmp_path / "cold").rglob("*.seg"):
        path.unlink()
    assert topic.delete(offsets=[5000, 4100]) == 2
    assert topic.read_values(4999, 2) == [value(4999), value(5001)]


def test_a_large_delete_takes_several_frames(open_store: OpenStore) -> None:
    """A log file may be smaller than the set of offsets."""

    def make() -> Store:
        return open_store(shards=1, log_file_bytes=4096, log_chunk_bytes=4096, background=False)

    with make() as store:
        topic = store.topic("t")
        for _ in range(40):
            topic.append_many([b"%d" % n for n in range(500)])
        odd = [n for n in range(20_000) if n * n % 7 in (1, 2)]
        assert topic.delete(offsets=odd) == len(odd)
        left = 20_000 - len(odd)
        assert len(topic.read_values()) == left
    assert len(make().topic("t").read_values()) == left


@pytest.mark.parametrize("left", [0, 1, 15])
@pytest.mark.parametrize("keep_up", ["compact", "round"])
def test_a_topic_that_was_emptied_goes_on(
    open_store: OpenStore, tmp_path: Path, keep_up: str, left: int
) -> None:
    """The open segment was removed, and what came next written to its file, which had no name.

    A checkpoint later the log was given up, and acknowledged records were lost.
    """
    clock = ManualClock()
    store = open_store(clock=clock, background=False, shards=1)
    topic = store.create_topic("t", segment_records=10)
    fill(topic, 4)
    store.checkpoint()
    if left:
        fill(topic, left)  # not in a segment yet
    assert topic.delete(before=topic.next_offset) == 4 + left
    if keep_up == "compact":
        store.compact()
    else:
        clock.advance(3600)
        upkeep(store).round()
        assert store.stats().upkeep is None
    assert files(tmp_path) == files(tmp_path, ".open") == []  # its space comes back
    for count in (1, 20):
        first = topic.next_offset
        fill(topic, count)
        store.snapshot()
        store.snapshot()
        check(topic, range(4 + left, first + count))
    store.close()
    store = open_store(clock=clock, background=False)
    assert store.damage is None
    check(store.topic("t"), range(4 + left, 25 + left))
