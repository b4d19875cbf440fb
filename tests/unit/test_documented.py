"""Names that completion shows of a handle, and times that are not taken for offsets."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import stratalog
from stratalog import OffsetOutOfRangeError, OptionError, Store
from stratalog.handles.documented import DOCUMENTED


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with stratalog.open(tmp_path / "data", durability="memory", shards=1) as store:
        yield store


def _handles(store: Store) -> Iterator[tuple[str, Any]]:
    topic = store.topic("t")
    yield "Store", store
    yield "Topic", topic
    yield "Topic", store.topic("d", type=dict)
    yield "Queue", store.queue("q")
    yield "Queue", store.queue("j", type=dict)
    yield "Group", topic.group("g")
    yield "Table", store.table("u")
    yield "Table", store.table("v", type=dict)
    yield "Series", store.series("s")
    with store.batch() as batch:
        yield "Batch", batch


def test_a_handle_shows_its_documented_names_alone(store: Store) -> None:
    """All of them, with a docstring each where there is code, whether it has a type or not."""
    seen = set()
    for name, handle in _handles(store):
        seen.add(name)
        assert {one for one in dir(handle) if not one.startswith("_")} == DOCUMENTED[name]
        for one in DOCUMENTED[name]:
            member = getattr(type(handle), one, None)
            if inspect.isfunction(member) or isinstance(member, property):
                assert inspect.getdoc(member), f"{name}.{one}"
    assert seen == set(DOCUMENTED)


def test_an_offset_is_not_taken_for_a_time(store: Store) -> None:
    """Nor a time for an offset: either is refused, with what to give instead."""
    topic = store.topic("t")
    topic.append_many([b"%d" % n for n in range(5)])
    for call in (
        lambda: topic.offset_at(3),
        lambda: topic.read_values(since=3),
        lambda: list(topic.records(until=3)),
    ):
        with pytest.raises(OptionError, match="offsets are not taken here"):
            call()
    for wrong in (int(time.time()), time.time_ns()):
        with pytest.raises(OffsetOutOfRangeError, match="an int, so it is an offset"):
            topic.delete(before=wrong)
    assert len(topic) == 5
    assert topic.offset_at(int(time.time()) + 60) == topic.offset_at(time.time_ns() + 10**11) == 5
    assert topic.offset_at(0) == topic.offset_at(datetime(1971, 1, 1, tzinfo=UTC)) == 0
    assert topic.delete(before=2) == 2
    assert topic.delete(before=time.time() + 60) == 3
