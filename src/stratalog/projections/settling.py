"""What a batch does to a consumer group, written in one frame with the rest of the batch.

Records that a batch acknowledges or gives back are set aside when it begins to be committed: they
are nobody's, are not delivered, and for a snapshot they are still pending, because the frame may
yet fail. When it is in the log they are consumed, or given back; when it is not they are pending
again, with the leases they had.

Concurrency: `take` and `finish` are called with no lock held. `encode`, `done` and `failed` are
called by holders of the commit lock, who must not wait for the group's own: what they want to be
done under that goes into its inbox.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import NamedTuple

from msgspec.structs import replace

from stratalog.errors import StratalogError
from stratalog.format.frame import FrameType
from stratalog.format.groups import encode_group
from stratalog.log.group import Entry
from stratalog.model import Delivery, Lease
from stratalog.projections.delivery import Deliveries
from stratalog.projections.engine import Engine


class Return(NamedTuple):
    """A record that is to be given back."""

    offset: int
    delivery: Delivery | None
    """As it was delivered, or None if it is known by its offset alone."""
    due: int
    """Nanoseconds since 1970 from which on it is delivered again."""
    reason: str


class Settlement:
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

    def check(self, deliveries: Iterable[Delivery], what: str) -> None:
        """Raise unless these are still their consumer's."""
        engine = self.engine
        if isinstance(engine, Deliveries):
            with engine.lock:
                engine.open_inbox()
                for delivery in deliveries:
                    if delivery.lease.deadline and not delivery.is_settled:
                        engine.check_held(delivery, what)

    # --- before: no lock is held ----------------------------------------------------------

    def take(self) -> None:
        """Set everything aside; if one is somebody else's by now it raises, and nothing is."""
        engine = self.engine
        self._outcome = ""
        self._taken = {}
        if not isinstance(engine, Deliveries):
            offsets = [*self.offsets, *(delivery.offset for delivery in self.acks)]
            self._cursor = max(offsets, default=-1) + 1
            return
        with engine.lock:
            engine.open_inbox()
            acks = [one for one in self.acks if one.lease.deadline and not one.is_settled]
            for delivery in acks:
                engine.check_held(delivery, "acknowledged")
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
            # Noted as set aside before it is no longer pending: a snapshot has it in one of both.
            self._taken = {o: state.pending[o] for o in (*self._consumed, *self._returned)}
            state.settling.update(self._taken)
            for offset in self._taken:
                del state.pending[offset]
            engine.cancel(list(self._taken))

    # --- writing: the commit lock is held -------------------------------------------------

    def encode(self) -> Entry:
        """What is done, as a frame."""
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
        """The frame is in the log; may be called again."""
        state = self.engine.state
        if self._outcome != "done":
            for offset in self._consumed:
                state.settling.pop(offset, None)
            for offset, lease in self._returned.items():
                if offset in state.settling:
                    state.settling[offset] = lease
            if self._cursor:
                self.engine.operations.move(self._cursor, is_written=True)
            else:
                state.consumed += len(self._consumed)
            self._outcome = "done"
            self.engine.inbox.append(self._give_back)
        # Behind all that: a snapshot that has the number has what the frame says.
        state.number = max(state.number, number)
        self.engine.line.wake()

    def failed(self) -> None:
        """The frame is not in the log; may be called again."""
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
        now = engine.topic.time_ns()
        for one in self.returns:
            if one.delivery is not None:
                one.delivery.settled = True
            if state.settling.pop(one.offset, None) is not None:
                state.pending[one.offset] = self._taken[one.offset]
                with contextlib.suppress(StratalogError):  # a shard that takes no more says so
                    engine.give_back(one.offset, one.due, now, one.reason, one.delivery)

    def _put_back(self) -> None:
        engine = self.engine
        if not isinstance(engine, Deliveries):
            return
        for offset, lease in self._taken.items():
            if engine.state.settling.pop(offset, None) is not None:
                engine.state.pending[offset] = lease
                engine.operations.touched.append(offset)
                engine.watch(lease.deadline, (offset,))
        if self._taken:
            with contextlib.suppress(StratalogError):
                engine.operations.enter(sync=False)

    def finish(self) -> None:
        """Take in what became of it, as far as that is known; no lock is held."""
        with self.engine.lock:
            self.engine.open_inbox()
        self.engine.tend()
