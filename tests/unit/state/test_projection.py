"""Topics of a kind: how records reach their projection, live, in recovery and in a view."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import stratalog
from stratalog.errors import CorruptionError, WrongKindError
from stratalog.format.batch import Batch
from stratalog.handles.store import Store
from stratalog.log.append import append_entries
from stratalog.log.topic import TopicLog
from stratalog.model import Record
from stratalog.options import TopicOptions
from stratalog.state import router
from stratalog.state.projection import catch_up


class Values:
    """A projection that keeps all values, and says how often it was asked to take some in."""

    def __init__(self, topic: TopicLog) -> None:
        self.topic = topic
        self.applied = 0
        self.values: list[bytes | None] = []
        self.restored = -1
        self.is_gone = False
        self.is_void = False

    def apply(self, batch: Batch, first: int, end: int) -> None:
        self.values += batch.values(first, end)

    def capture(self) -> tuple[int, bytes]:
        return self.applied, b",".join(value or b"" for value in self.values)

    def restore(self, applied: int, data: bytes) -> None:
        if b"bad" in data:
            raise CorruptionError("bad values")
        self.applied = self.restored = applied
        self.values = list(data.split(b","))

    def reset(self) -> None:
        self.applied = 0
        self.values = []

    def rebuild(self) -> None:
        self.reset()
        catch_up(self.topic, self, self.topic.committed)

    def void(self) -> None:
        self.is_void = True

    def drop(self) -> None:
        self.is_gone = True


@pytest.fixture(autouse=True)
def kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics of kind `table` are projected by `Values`."""
    monkeypatch.setitem(router.PROJECTIONS, "table", Values)


def _open(store: Store, name: str = "t") -> tuple[TopicLog, Values]:
    log = store.log_of_kind(name, "table", TopicOptions())
    assert isinstance(log.projection, Values)
    return log, log.projection


def _append(store: Store, log: TopicLog, *values: bytes) -> None:
    records = [Record(value) for value in values]
    append_entries(log, *_entries(store, log, records))


def _entries(store: Store, log: TopicLog, records: Sequence[Record]) -> tuple[list, int]:  # type: ignore[type-arg]
    entries, _ = store.handle(log.name, log).encode_records(list(records))
    return entries, log.rank


def test_records_reach_a_projection_once_and_in_order(tmp_path: Path) -> None:
    """Records below the applied position are not applied again."""
    with stratalog.open(tmp_path) as store:
        log, values = _open(store)
        _append(store, log, b"a", b"b")
        catch_up(log, values, log.committed)
        catch_up(log, values, log.committed)
        _append(store, log, b"c")
        catch_up(log, values, log.committed)
        assert (values.values, values.applied) == ([b"a", b"b", b"c"], 3)


@pytest.mark.parametrize("is_snapshotted", [False, True])
def test_a_projection_is_recovered(tmp_path: Path, is_snapshotted: bool) -> None:
    """From the snapshot and what came after it, or from all records if there is none."""
    with stratalog.open(tmp_path) as store:
        log, values = _open(store)
        _append(store, log, b"a", b"b")
        catch_up(log, values, log.committed)
        if is_snapshotted:
            store.snapshot()
        _append(store, log, b"c")
    with stratalog.open(tmp_path) as store:
        log, values = _open(store)
        assert values.restored == (2 if is_snapshotted else -1)
        catch_up(log, values, log.committed)
        assert values.values == [b"a", b"b", b"c"]


def test_a_state_that_cannot_be_restored_is_made_again(tmp_path: Path) -> None:
    """A projection is derived: its records have everything, whatever a snapshot says."""
    with stratalog.open(tmp_path) as store:
        log, values = _open(store)
        _append(store, log, b"bad", b"b")
        catch_up(log, values, log.committed)
        store.snapshot()
    with stratalog.open(tmp_path) as store:
        log, values = _open(store)
        assert values.applied == 0
        catch_up(log, values, log.committed)
        assert values.values == [b"bad", b"b"]


def test_a_view_follows_the_writer(tmp_path: Path) -> None:
    """A read-only store has a projection of its own, and catches up with what was written."""
    with stratalog.open(tmp_path) as store, stratalog.open(tmp_path, read_only=True) as reader:
        log, _ = _open(store)
        _append(store, log, b"a")
        seen, values = _open(reader)
        catch_up(seen, values, seen.committed)
        _append(store, log, b"b")
        reader.make_readable(seen)
        catch_up(seen, values, seen.committed)
        assert values.values == [b"a", b"b"]


def test_a_projection_is_told_when_its_topic_goes(tmp_path: Path) -> None:
    """Dropped with its topic, and let go of when the store is closed."""
    with stratalog.open(tmp_path) as store:
        _, dropped = _open(store, "dropped")
        _, closed = _open(store, "closed")
        store.drop_topic("dropped")
        assert (dropped.is_gone, closed.is_gone) == (True, False)
    assert closed.is_gone


def test_records_of_a_kind_are_read_and_not_written_as_a_topic(tmp_path: Path) -> None:
    """A projection relies on the form of its records, so that no one else makes them."""
    with stratalog.open(tmp_path) as store:
        log, _ = _open(store)
        _append(store, log, b"a")
        topic = store.topic("t")
        assert topic.read_values() == [b"a"]
        for write in (
            lambda: topic.append(b"x"),
            lambda: topic.append_many([b"x"]),
            lambda: topic.append_nowait(b"x"),
            lambda: topic.delete(before=1),
        ):
            with pytest.raises(WrongKindError, match="'t' is a table"):
                write()
        with pytest.raises(WrongKindError), store.batch() as batch:
            batch.topic("t").append(b"x")
        assert topic.read_values() == [b"a"]


def test_a_name_of_another_kind_is_refused(tmp_path: Path) -> None:
    """One name is one thing: the error says which, and how to open it."""
    with stratalog.open(tmp_path) as store:
        store.topic("plain")
        store.queue("jobs")
        for name, kind in (("plain", "topic"), ("jobs", "queue")):
            with pytest.raises(WrongKindError, match=rf"store\.{kind}\('{name}'\)"):
                store.log_of_kind(name, "table", TopicOptions())
        assert store.names_of_kind("queue") == ["jobs"]
