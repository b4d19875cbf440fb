"""Topics that are created and dropped while another thread goes through all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from tests.crash.model import kill, open_store

import stratalog.state.snapshot
from stratalog.format.snapshot import CatalogState, TopicState
from stratalog.handles.store import Store
from stratalog.log.topic import TopicLog
from stratalog.state.snapshot import capture
from stratalog.testing import FakeDisk, ManualClock


def elsewhere(action: Callable[[], object]) -> None:
    """Have another thread do something, and wait for it."""
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()


def store_of_two(disk: FakeDisk) -> Store:
    """A store with topics `a` and `b`, in segments."""
    store = open_store(disk, ManualClock(), shards=1)
    for name in ("a", "b"):
        store.create_topic(name).append_many([name.encode()] * 5)
    store.checkpoint()
    return store


@pytest.mark.parametrize("moment", ["a", "b"])
@pytest.mark.parametrize("is_killed", [True, False])
def test_a_topic_that_is_dropped_while_a_snapshot_is_made_stays_dropped(
    monkeypatch: pytest.MonkeyPatch, moment: str, is_killed: bool
) -> None:
    """It was among the topics and among the dropped ones, whose frames are ignored.

    So it came back, and when its files went all the same the store was damaged.
    """
    disk = FakeDisk()
    store = store_of_two(disk)

    def capture_slowly(topic: TopicLog) -> TopicState:
        state = capture(topic)
        if topic.name == moment:
            elsewhere(lambda: store.drop_topic("b"))
        return state

    with monkeypatch.context() as patch:
        patch.setattr(stratalog.state.snapshot, "capture", capture_slowly)
        store.snapshot()
    assert store.topics() == ["a"]
    for _ in range(3):
        if is_killed:
            kill(store)
            disk = disk.crash(0, "keep")
        else:
            store.close()
        store = open_store(disk, ManualClock(), shards=1)
        assert store.damage is None
        assert store.topics() == ["a"]
        store.compact()
        assert store.topic("a").read_values() == [b"a"] * 5
    again = store.create_topic("b")
    assert again.log.epoch == 1
    assert again.next_offset == 0
    store.close()


def test_a_snapshot_that_has_a_topic_among_those_that_are_gone_does_not_bring_it_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such were made: see above."""
    disk = FakeDisk()
    store = store_of_two(disk)
    gone = [store.topic("b").log.id]
    with monkeypatch.context() as patch:
        patch.setattr(
            stratalog.state.snapshot,
            "CatalogState",
            lambda **kw: CatalogState(**kw | {"dropped": gone}),
        )
        store.snapshot()
    store.drop_topic("b")
    kill(store)
    with open_store(disk.crash(0, "keep"), ManualClock(), shards=1) as store:
        assert store.damage is None
        assert store.topics() == ["a"]
        store.compact()
        assert store.create_topic("b").log.epoch == 1


class Watched(dict[str, TopicLog]):
    """Topics by name, of which something becomes while one looks through them."""

    action: Callable[[], object]

    def __iter__(self) -> Iterator[str]:
        names = list(super().__iter__())
        elsewhere(self.action)
        return iter(names)


def test_all_topics_can_be_listed_while_one_is_dropped() -> None:
    """Names were looked at first, and then looked up: the snapshot ended with a `KeyError`."""
    store = store_of_two(FakeDisk())
    watched = Watched(store._catalog._by_name)
    watched.action = lambda: store.drop_topic("b")
    store._catalog._by_name = watched
    assert [topic.name for topic in store._catalog.topics()] == ["a", "b"]
    assert [topic.name for topic in store._catalog.topics()] == ["a"]
    store.close()
