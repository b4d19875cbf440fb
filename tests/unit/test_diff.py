"""Diffs: following a topic step by step, without what is gone and without one's own."""

from __future__ import annotations

from typing import Any

import pytest
from tests.conftest import OpenStore
from tests.unit.segments.topics import fill, segments

from stratalog import Gap, OffsetOutOfRangeError, OptionError, WrongTypeError
from stratalog.model import Diff
from stratalog.testing import ManualClock


def _offsets(diff: Diff) -> list[int]:
    return [record.offset for record in diff.records]


def test_an_empty_topic_has_nothing_new(open_store: OpenStore) -> None:
    """And the reader has caught up."""
    diff = open_store().topic("t").diff()
    assert diff == Diff([], -1, -1, 0, True, None, 0)


@pytest.mark.parametrize("place", ["log", "open", "sealed"])
@pytest.mark.parametrize("limit", [1, 3, 7, 25, 26, 500])
@pytest.mark.parametrize("node", [None, "n0", "n1", "other"])
def test_steps_add_up_to_the_whole(
    open_store: OpenStore, place: str, limit: int, node: str | None
) -> None:
    """Whatever the step: every record once, in order, and only what others have appended."""
    store = open_store(background=False)
    topic = store.create_topic("t", segment_records=10 if place == "sealed" else 1000)
    for size in (11, 1, 14):
        fill(topic, size)
        if place != "log":
            store.checkpoint()
    topic.delete(offsets=[0, 7, 8, 25])
    wanted = [n for n in range(26) if n not in (0, 7, 8, 25) and node != f"n{n % 2}"]
    seen: list[int] = []
    after, steps = -1, 0
    while True:
        diff = topic.diff(after=after, limit=limit, node=node)
        assert len(diff.records) <= limit
        assert (diff.newest, diff.earliest, diff.gap) == (25, 0, None)
        assert diff.caught_up == (diff.next == 25)
        assert diff.next > after or diff.caught_up
        seen += _offsets(diff)
        after, steps = diff.next, steps + 1
        if diff.caught_up:
            break
        assert len(diff.records) == limit, "less than the limit means there is no more"
    assert seen == wanted
    assert steps <= len(wanted) // limit + 1
    assert topic.diff(after=after, node=node) == Diff([], 25, 25, 0, True, None, 0)


def test_what_is_gone_by_itself_is_told_once(open_store: OpenStore) -> None:
    """The gap from where the asker was; not what has expired, and not what was deleted."""
    clock = ManualClock()
    store = open_store(clock=clock, background=False)
    topic = store.create_topic("t", segment_records=10, retention_records=20)
    topic.append(b"short", ttl=5.0)
    fill(topic, 9)
    store.checkpoint()
    clock.advance(10)
    diff = topic.diff(limit=2)
    assert (_offsets(diff), diff.gap, diff.next) == ([1, 2], None, 2)
    segments(store, topic, 3)
    store.compact()
    diff = topic.diff(after=diff.next, limit=2)
    assert (_offsets(diff), diff.gap) == ([20, 21], Gap(3, 19, "evicted"))
    assert (diff.earliest, diff.newest, diff.next, diff.caught_up) == (20, 39, 21, False)
    assert topic.diff(after=diff.next).gap is None
    topic.delete(before=40)
    diff = topic.diff(after=21)
    assert (diff.records, diff.gap, diff.next, diff.caught_up) == ([], None, 39, True)
    assert diff.earliest == 40


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"after": 3}, OffsetOutOfRangeError), ({"after": -2}, OptionError),
        ({"after": True}, WrongTypeError), ({"after": 1.0}, WrongTypeError),
        ({"limit": 0}, OptionError), ({"limit": -1}, OptionError),
        ({"limit": None}, WrongTypeError),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused(
    open_store: OpenStore, arguments: dict[str, Any], error: type[Exception]
) -> None:
    """An offset that is not there yet is a mistake of the asker."""
    topic = open_store().topic("t")
    fill(topic, 3)
    assert topic.diff(after=2).caught_up
    with pytest.raises(error):
        topic.diff(**arguments)
