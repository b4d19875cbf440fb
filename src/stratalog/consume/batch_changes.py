"""The changes of a batch to a consumer group, written in one frame with the rest of the batch.

Records that a batch acknowledges or gives back are set aside when its commit begins: they belong to
no consumer and are not delivered. For a snapshot they are still pending, because the frame may yet
fail. Once the frame is in the log they are consumed, or given back; if it fails they are pending
again, with the leases they had.

Concurrency: `take` and `finish` are called with no lock held. `encode`, `done` and `failed` are
called by holders of the commit lock, which must not wait for the consumer group's lock: work that
needs that lock goes into the group's inbox.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from stratalog.consume.engine import Engine
from stratalog.consume.leases import Return
from stratalog.consume.queue_engine import Deliveries
from stratalog.errors import StratalogError, TooLargeError
from stratalog.format.frame import FrameType
from stratalog.format.groups import ENTRY_BYTES, encode_group
from stratalog.log.commit_group import Entry
from stratalog.model import Delivery, Lease


class GroupChanges:
    """Acknowledgements and returns of one group, on their way into the log."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.topic = engine.topic
        self.acks: list[Delivery] = []
        self.offsets: list[int] = []
        self.returns: list[Return] = []
        self._taken: dict[int, Lease] = {}
        self._consumed: list[int] = []
        self._returned: dict[int, Lease] = {}
        self._cursor = 0
        self._outcome = ""

    def __bool__(self) -> bool:
        return bool(self.acks or self.offsets or self.returns)

    def check(self, deliveries: Sequence[Delivery], what: str) -> None:
        """Raise unless these still belong to their consumer."""
        engine = self.engine
        with engine.lock:
            engine.open_inbox()
            if isinstance(engine, Deliveries):
                engine.check_all(deliveries, what)
                return
            for delivery in deliveries:
                engine.check_held(delivery, what)

    def look(self, deliveries: Sequence[Delivery], due: int, reason: str) -> list[Return]:
        """Return those to be given back; raises if one is void."""
        engine = self.engine
        assert isinstance(engine, Deliveries)
        with engine.lock:
            engine.open_inbox()
            return engine.returns((), deliveries, due, reason)

    # --- before: no lock is held ----------------------------------------------------------

    def take(self) -> None:
        """Set everything aside, or nothing: raises if another consumer has one of them."""
        engine = self.engine
        self._outcome = ""
        self._taken = {}
        with engine.lock:
            engine.open_inbox()
            engine.check_exists()
            if not isinstance(engine, Deliveries):
                self._cursor = self.cursor()
                return
            self._take(engine)

    def _take(self, engine: Deliveries) -> None:
        acks = engine.check_all(self.acks, "acknowledged")
        self._check_size()
        for one in self.returns:
            if one.delivery is not None:
                engine.check_held(one.delivery, "given back")
        state = engine.state
        wanted = dict.fromkeys([*self.offsets, *(delivery.offset for delivery in acks)])
        self._consumed = [offset for offset in wanted if offset in state.pending]
        self._returned = {
            one.offset: replace(state.pending[one.offset], deadline=one.due, consumer="")
            for one in self.returns
            if one.offset in state.pending and one.offset not in wanted
        }
        # Added to `settling` before it leaves `pending`: a snapshot has it in one of the two.
        self._taken = {o: state.pending[o] for o in (*self._consumed, *self._returned)}
        state.settling.update(self._taken)
        for offset in self._taken:
            del state.pending[offset]
        engine.cancel(list(self._taken))

    def cursor(self) -> int:
        """Return the new cursor of a group in mode `stream`; the group's lock is held."""
        for delivery in self.acks:
            self.engine.check_held(delivery, "acknowledged")
        self.engine.check_offsets(self.offsets)
        offsets = [*self.offsets, *(delivery.offset for delivery in self.acks)]
        return max(offsets, default=-1) + 1

    def _check_size(self) -> None:
        size, size_max = ENTRY_BYTES * len(self.returns), self.topic.batch_bytes_max // 2
        if size > size_max:
            raise TooLargeError(
                f"{len(self.returns)} records cannot be given back at once: that takes {size} "
                f"bytes, and at most {size_max} fit into one frame. Give them back in parts."
            )

    # --- writing: the commit lock is held -------------------------------------------------

    def encode(self) -> Entry:
        """Encode the changes as a frame."""
        state = self.engine.state
        number = self.engine.operations.next_number()
        body = encode_group(
            state.id,
            state.deliveries,
            max(state.cursor, self._cursor),
            self._returned,
            sorted(self._consumed),
        )

        def done() -> None:
            self._done(number)

        return Entry(
            FrameType.GROUP, self.topic.id, body, base_offset=number, on_commit=done,
            on_fail=self.failed,
        )  # fmt: skip

    def _done(self, number: int) -> None:
        """Apply the frame, which is in the log; idempotent."""
        state = self.engine.state
        if self._outcome != "done":
            for offset in self._consumed:
                state.settling.pop(offset, None)
            for offset, lease in self._returned.items():
                if offset in state.settling:
                    state.settling[offset] = lease
            if self._cursor:
                self.engine.operations.moved(self._cursor)
            else:
                state.consumed += len(self._consumed)
            self._outcome = "done"
            self.engine.inbox.append(self._give_back)
        # Last: a snapshot that has the number then has the effect of the frame.
        state.number = max(state.number, number)
        self.engine.line.wake()

    def failed(self) -> None:
        """Undo: the frame is not in the log; idempotent."""
        if not self._outcome:
            self._outcome = "failed"
            self.engine.inbox.append(self._put_back)

    # --- after: the group's lock is held --------------------------------------------------

    def _give_back(self) -> None:
        engine = self.engine
        state = engine.state
        for delivery in self.acks:
            delivery.settled = True
        if not isinstance(engine, Deliveries):
            engine.forward(self._cursor)
            return
        returns = []
        for one in self.returns:
            if one.delivery is not None:
                one.delivery.settled = True
            if state.settling.pop(one.offset, None) is not None:
                state.pending[one.offset] = self._taken[one.offset]
                returns.append(one)
        if returns:
            engine.give_back(returns, engine.topic.sane_time_ns(), is_written=True)

    def _put_back(self) -> None:
        engine = self.engine
        if not isinstance(engine, Deliveries):
            return
        for offset, lease in self._taken.items():
            if engine.state.settling.pop(offset, None) is not None:
                engine.state.pending[offset] = lease
                engine.watch(lease.deadline, (offset,))
        with _quiet(engine):
            engine.operations.note(touched=list(self._taken))

    def finish(self) -> None:
        """Take in the outcome, as far as it is known; no lock is held."""
        with self.engine.lock:
            self.engine.open_inbox()
        # The changes are made. If dead letters cannot be moved now, the next call moves them.
        with _quiet(self.engine):
            self.engine.tend()


@contextlib.contextmanager
def _quiet(engine: Engine) -> Iterator[None]:
    """Suppress errors: a poisoned shard raises in the next call that writes.

    Earlier losses are not reported here either, but to the next append.
    """
    shard = engine.topic.shard
    lost, shard.lost = shard.lost, None
    try:
        with contextlib.suppress(StratalogError):
            yield
    finally:
        shard.lost = shard.lost or lost
