"""Facts about records that headers alone give."""

from __future__ import annotations

import pytest
from tests.conftest import OpenStore

from stratalog.handles.store import Store
from stratalog.model import Record
from stratalog.segments.column_probe import plain_until

LARGE = [b"x" * 100] * 300


@pytest.fixture
def store(open_store: OpenStore) -> Store:
    return open_store(background=False)


def test_large_frames_of_values_are_plain_up_to_one_that_is_not(store: Store) -> None:
    """A key, a priority, a delay, or a frame so small that reading it is as fast."""
    topic = store.topic("t")
    topic.append_many(LARGE)
    topic.append_many(LARGE)
    topic.append_many([Record(b"x" * 100, tag="t")] * 300)  # tells a queue nothing
    log = topic._log
    assert plain_until(log, 0, 900) == 900
    assert plain_until(log, 450, 500) == 500
    assert plain_until(log, 900, 900) == 900
    for extra in ({"key": b"k"}, {"priority": 1}, {"not_before": 1}):
        end = topic.append_many([Record(b"x" * 100, **extra)] * 300)[0]
        assert plain_until(log, 0, topic.next_offset) == 900
        assert plain_until(log, end, topic.next_offset) == end
    small = topic.append(b"x")
    assert plain_until(log, small, small + 1) == small


def test_what_left_the_log_is_not_looked_at(store: Store) -> None:
    """It is in segments, or nowhere."""
    topic = store.topic("t")
    topic.append_many(LARGE)
    store.checkpoint()
    topic.append_many(LARGE)
    assert plain_until(topic._log, 0, 600) == 0
    assert plain_until(topic._log, 300, 600) == 600
    memory = store.create_topic("memory", durability="ephemeral")
    memory.append_many(LARGE)
    assert plain_until(memory._log, 0, 300) == 0
