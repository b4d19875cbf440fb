"""What a store was told, and what it must therefore hold after a crash."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from stratalog.model import Durability, Gap, Record
from stratalog.options import StoreOptions
from stratalog.store import Store
from stratalog.testing import FakeDisk, ManualClock, MonitorFs
from stratalog.topic import Topic

ROOT = "/data"

Fields = tuple[bytes | None, bytes | None, str | None]
"""Value, key and tag: enough to tell records apart."""


@dataclasses.dataclass
class TopicModel:
    """One topic: everything that was ever sent, in the order of its offsets."""

    sent: list[Fields] = dataclasses.field(default_factory=list)
    durable: int = 0
    """Offsets below this were acknowledged as on the disk."""
    batches: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    """Start and end of what is all there or not at all."""
    is_ephemeral: bool = False
    is_created: bool = False


class Session:
    """A store on a fake disk, with a model that is told everything before the store is."""

    def __init__(self, disk: FakeDisk, clock: ManualClock, **options: Any) -> None:
        self.disk = disk
        self.clock = clock
        self.options = options
        self.topics: dict[str, TopicModel] = {}
        self.monitor: MonitorFs
        self.store: Store
        self._pending: list[tuple[str, int]] = []

    def open(self, **options: Any) -> None:
        """Open the store with small files, so that little data makes many of them."""
        self.options |= options
        self.monitor = MonitorFs(self.disk)
        self.store = open_store(self.monitor, self.clock, **self.options)

    def reopen(self, **options: Any) -> None:
        """Close cleanly, which makes everything durable, and open again."""
        self.store.close()
        self._all_durable()
        self.open(**options)

    def create(self, name: str, **options: Any) -> Topic:
        """Create a topic."""
        model = self.topics.setdefault(name, TopicModel())
        model.is_ephemeral = options.get("durability") == "ephemeral"
        topic = self.store.create_topic(name, **options)
        model.is_created = True
        return topic

    def append(self, name: str, value: bytes | None, **options: Any) -> int:
        """Append one record."""
        topic, model = self._topic(name)
        model.sent.append((value, options.get("key"), options.get("tag")))
        offset = topic.append(value, **options)
        assert offset == len(model.sent) - 1
        if (options.get("durability") or topic.durability) == Durability.FSYNC:
            model.durable = offset + 1
        return offset

    def append_many(self, name: str, values: Sequence[bytes | Record], **options: Any) -> None:
        """Append one atomic batch."""
        topic, model = self._topic(name)
        start = len(model.sent)
        for value in values:
            record = value if isinstance(value, Record) else Record(value=value)
            model.sent.append((record.value, record.key, record.tag))
        model.batches.append((start, len(model.sent)))
        assert topic.append_many(values, **options) == (start, len(model.sent) - 1)
        if (options.get("durability") or topic.durability) == Durability.FSYNC:
            model.durable = len(model.sent)

    def nowait(self, name: str, value: bytes) -> Any:
        """Append one record without waiting."""
        topic, model = self._topic(name)
        model.sent.append((value, None, None))
        return topic.append_nowait(value)

    def resolved(self, name: str, offset: int) -> None:
        """A future was resolved: everything up to it is durable."""
        model = self.topics[name]
        model.durable = max(model.durable, offset + 1)

    def kill(self) -> None:
        """Leave the store as a killed process does."""
        if hasattr(self, "store"):
            kill(self.store)

    def sync(self) -> None:
        """Make everything durable."""
        self.store.sync()
        self._all_durable()

    def tick(self, seconds: float = 0.01) -> None:
        """Do what the background thread would do after so many seconds."""
        self.clock.advance(seconds)
        assert self.store._log is not None
        self.store._log.tick()

    def checkpoint(self) -> None:
        """Put everything into segments, which makes it durable."""
        self.store.checkpoint()
        self._all_durable()

    def snapshot(self) -> None:
        """Checkpoint, and give up the log behind it."""
        self.store.snapshot()
        self._all_durable()

    def _topic(self, name: str) -> tuple[Topic, TopicModel]:
        model = self.topics.setdefault(name, TopicModel())
        topic = self.store.topic(name)
        model.is_created = True
        return topic, model

    def _all_durable(self) -> None:
        for model in self.topics.values():
            model.durable = len(model.sent)


def open_store(fs: Any, clock: ManualClock, **options: Any) -> Store:
    """A store with small files and no background thread."""
    small = {"shards": 2, "log_file_bytes": 8192, "log_chunk_bytes": 4096, "disk_reserve_bytes": 0}
    return Store(
        ROOT, StoreOptions.build(small | options, {}), fs=fs, clock=clock, background=False
    )


def kill(store: Store) -> None:
    """Leave a store as a killed process does: nothing is written, nothing is closed."""
    store.is_closed = True


def check_recovered(store: Store, topics: dict[str, TopicModel]) -> None:
    """Hold a recovered store against what it was told."""
    assert store.damage is None, store.damage
    names = store.topics()
    for name, model in topics.items():
        if name not in names:
            assert not model.is_created, f"topic {name!r} was created and is gone"
            continue
        topic = store.topic(name)
        if model.is_ephemeral:
            assert topic.next_offset >= len(model.sent) - 1, "an ephemeral offset would be reused"
            assert all(isinstance(item, Gap) for item in topic.read())
            continue
        items = list(topic.read())
        records = [item for item in items if isinstance(item, Record)]
        assert len(records) == len(items), "a gap in a topic that lost nothing"
        found = [(record.value, record.key, record.tag) for record in records]
        assert [record.offset for record in records] == list(range(len(records)))
        assert found == model.sent[: len(found)], "a record that was never sent"
        assert len(found) >= model.durable, (
            f"topic {name!r}: {len(found)} records, {model.durable} were acknowledged as durable"
        )
        for start, end in model.batches:
            assert not start < len(found) < end, "half a batch"
        stamps = [record.timestamp for record in records]
        assert stamps == sorted(stamps), "time went back"
        assert topic.next_offset == len(found)


Workload = Callable[[Session], None]
