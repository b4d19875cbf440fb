"""A queue on a fake disk, and what it must know after a crash."""

from __future__ import annotations

import dataclasses
from typing import Any

from stratalog.handles.dead_letters import ORIGINAL_OFFSET, SUFFIX
from stratalog.handles.queue import Queue
from stratalog.handles.store import Store
from stratalog.handles.topic import Topic
from stratalog.model import Gap, Message, Put
from stratalog.state.group_state import GroupState
from tests.crash.model import Session, TopicModel, kept_end


@dataclasses.dataclass
class QueueModel:
    """The operations on the messages of a queue."""

    priorities: dict[int, int] = dataclasses.field(default_factory=dict)
    ids: dict[bytes, int] = dataclasses.field(default_factory=dict)
    consuming: set[int] = dataclasses.field(default_factory=set)
    """Offsets that a consumer set out to consume."""
    consumed: set[int] = dataclasses.field(default_factory=set)
    """Offsets of which that was acknowledged as durable."""
    delivered: dict[int, int] = dataclasses.field(default_factory=dict)
    """How often each was delivered."""
    dying: set[int] = dataclasses.field(default_factory=set)
    """Offsets that may be among the dead letters."""
    dead: set[int] = dataclasses.field(default_factory=set)
    """Offsets that are, durably."""
    requeueing: set[int] = dataclasses.field(default_factory=set)
    """Offsets that may have left them again."""
    transformed: dict[int, dict[str, int]] = dataclasses.field(default_factory=dict)
    """Offsets that were consumed in a batch, with where its records end in each topic."""
    is_disk_faulty: bool = False
    """Whether a move to the dead letters may have failed: the message is in its queue then."""

    def check(self, store: Store, topic: Topic, model: TopicModel) -> None:
        """Hold a recovered queue against it; nothing is written."""
        state = topic._log.groups.find("", is_queue=True)
        count = kept_end(topic)
        dead = self._dead(store)
        if state is None:
            assert not model.durable, "messages without a queue"
            return
        left = unconsumed(state, topic)
        assert not left & self.consumed, f"consumed for good, and back: {left & self.consumed}"
        for offset in range(count):
            if offset not in self.consuming and offset not in dead | self.requeueing:
                assert offset in left, f"message {offset} is lost"
        for offset, ends in self.transformed.items():
            for name, end in ends.items():
                is_there = name in store.topics() and kept_end(store.topic(name)) >= end
                assert is_there == (offset not in left), (
                    f"message {offset} is {'left' if offset in left else 'consumed'}, and its "
                    f"result in {name!r} is {'there' if is_there else 'not there'}"
                )
        readable = {item.offset for item in topic.read() if not isinstance(item, Gap)}
        assert left <= readable, f"to be delivered, and not there: {left - readable}"
        kept = set(dead) | (left if self.is_disk_faulty else set())
        assert self.dead - self.requeueing <= kept, "a dead letter is lost"
        for offset, lease in state.pending.items():
            assert 1 <= lease.delivery_count <= self.delivered.get(offset, 0)
        for priority, bits in state.waiting.items():
            assert {self.priorities.get(offset, 0) for offset in bits} <= {priority}
        queue = topic._log.groups.queue
        assert queue is not None
        for id, offset in self.ids.items():
            if offset < count:
                assert queue.dedup.find(id, store.clock.time_ns()) == offset, "an id is forgotten"

    def _dead(self, store: Store) -> set[int]:
        name = next((name for name in store.topics() if name.endswith(SUFFIX)), None)
        if name is None:
            return set()
        letters = [item for item in store.topic(name).read() if not isinstance(item, Gap)]
        offsets = [int(item.headers[ORIGINAL_OFFSET]) for item in letters]
        assert len(set(offsets)) == len(offsets), "a message is among the dead letters twice"
        assert set(offsets) <= self.dying, "a message died for no reason"
        return set(offsets)


def unconsumed(state: GroupState, topic: Topic) -> set[int]:
    """Every offset that is still to be delivered, or acknowledged."""
    left = set(state.pending) | set(state.delays.offsets().tolist())
    for bits in state.waiting.values():
        assert left.isdisjoint(bits), "a message is in two places"
        left |= set(bits)
    return left | (set(range(state.ingested, topic.next_offset)) - set(topic._log.history.lost))


class QueueSession:
    """A queue of a session; the model is told everything before the queue is."""

    def __init__(self, session: Session, name: str, **options: Any) -> None:
        self.session = session
        self.name = name
        self.options = options
        self.topic = session.topics.setdefault(name, TopicModel())
        if self.topic.queue is None:
            self.topic.queue = QueueModel()
            self.topic.is_consumed = True
        self.model: QueueModel = self.topic.queue
        self.queue: Queue = session.store.queue(name, **options)
        self.topic.is_created = True

    @property
    def is_synced(self) -> bool:
        """Whether what is acknowledged is on the disk."""
        return str(self.queue.durability) == "fsync"

    def put(self, value: bytes, **options: Any) -> Put:
        """Put a message."""
        id = options.get("dedup_id")
        key = None if id is None else id.encode()
        offset = len(self.topic.sent)
        known = None if key is None else self.model.ids.get(key)
        if known is None:
            self.topic.sent.append((value, key, None))
            self.model.priorities[offset] = options.get("priority", 0)
        put = self.queue.put(value, **options)
        assert put == ((offset, False) if known is None else (known, True))
        if key is not None:
            self.model.ids.setdefault(key, offset)
        if self.is_synced:
            self.topic.durable = len(self.topic.sent)
        return put

    def get(self, limit: int = 1) -> list[Message]:
        """Get messages, in the order of their priorities."""
        taken = self.queue.options.delivery == "at_most_once"
        before = dict.fromkeys(self.queue._state.pending)
        if taken:  # which of them, only the queue knows before it says so
            self.model.consuming |= unconsumed(self.queue._state, self.queue.topic) - set(before)
        for offset in range(len(self.topic.sent)):
            self.model.delivered[offset] = self.model.delivered.get(offset, 0) + 1
        messages = self.queue.get_many(limit)
        got = {message.offset for message in messages}
        for offset in self.model.delivered:
            if offset not in got:
                self.model.delivered[offset] -= 1
        for message in messages:
            assert message.delivery_count == self.model.delivered[message.offset]
        if taken:
            self.model.consuming &= got | self.model.consumed
            if self.is_synced:
                self.model.consumed |= got
        return messages

    def ack(self, *messages: Message) -> None:
        """Acknowledge."""
        offsets = {message.offset for message in messages}
        self.model.consuming |= offsets
        self.queue.ack(*messages)
        if self.is_synced:
            self.model.consumed |= offsets

    def transform(
        self, message: Message, results: dict[str, list[bytes]], onward: bytes | None = None
    ) -> None:
        """Consume a message and append what comes of it, in one batch; or put it on as another."""
        session, model = self.session, self.model
        ends: dict[str, int] = {}
        for name, values in results.items():
            _, topic = session._topic(name)
            topic.sent += [(value, None, None) for value in values]
            ends[name] = len(topic.sent)
        if onward is not None:
            model.priorities[len(self.topic.sent)] = 4
            self.topic.sent.append((onward, None, None))
            ends[self.name] = len(self.topic.sent)
        model.consuming.add(message.offset)
        model.transformed[message.offset] = ends
        with session.store.batch() as batch:
            for name, values in results.items():
                batch.topic(name).append_many(values)
            if onward is not None:
                batch.queue(self.name).put(onward, priority=4)
            batch.queue(self.name).ack(message)
        if self.is_synced:
            model.consumed.add(message.offset)
            for name, end in ends.items():
                session.topics[name].durable = end

    def nack(self, message: Message, **options: Any) -> None:
        """Give back."""
        if message.delivery_count == self.queue.options.max_deliveries:
            self.model.dying.add(message.offset)
            self.model.consuming.add(message.offset)
        self.queue.nack(message, **options)
        if message.offset in self.model.dying:
            self.model.dead.add(message.offset)

    def expect_death(self, *offsets: int) -> None:
        """Leases will run out for the last time."""
        self.model.dying |= set(offsets)
        self.model.consuming |= set(offsets)

    def requeue(self) -> None:
        """Put all dead letters back."""
        letters = list(self.queue.dead.read())
        self.model.requeueing |= {int(one.headers[ORIGINAL_OFFSET]) for one in letters}
        for letter in letters:
            self.model.priorities[len(self.topic.sent)] = letter.priority
            self.topic.sent.append((letter.value, None, None))
        self.queue.dead.requeue()
        self.topic.durable = len(self.topic.sent)

    def purge(self) -> None:
        """Forget every message."""
        everything = set(range(len(self.topic.sent)))
        self.model.consuming |= everything
        self.queue.purge()
        self.model.consumed |= everything

    def all_durable(self) -> None:
        """Everything that was done is on the disk."""
        self.model.consumed |= self.model.consuming - self.model.dying
        self.session._all_durable()

    def reopen(self, **options: Any) -> None:
        """Close the store cleanly, and go on."""
        self.session.reopen(**options)
        self.all_durable()
        self.queue = self.session.store.queue(self.name)
