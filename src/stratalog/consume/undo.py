"""Changes of calls that wait for their commit: undone if it fails, so that a raise changes nothing.

A record that is acknowledged, or delivered for good, in a group of class `fsync` is set aside until
the log has it: it belongs to no consumer and is not delivered. For a snapshot it is still pending.
If the commit fails it is what it was before, and nothing of the call is written later.

Concurrency: `done` and `failed` are called by holders of the commit lock, which must not wait for
the group's own lock: work that needs that lock goes into the group's inbox.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import force_setattr

from stratalog.model import Delivery, Lease

if TYPE_CHECKING:
    from stratalog.consume.leases import Leasing


class Ticket:
    """Records that one call has consumed, until the outcome of its commit is known."""

    __slots__ = ("_deliveries", "_engine", "_is_over", "_whole", "leases")

    def __init__(
        self,
        engine: Leasing,
        leases: Mapping[int, Lease],
        deliveries: Sequence[Delivery],
        whole: Lease | None = None,
    ) -> None:
        self.leases = leases
        """The lease of each record, by offset."""
        self._engine = engine
        self._deliveries = deliveries
        self._whole = whole
        """The lease that all of the deliveries share, if they are all that do."""
        self._is_over = False

    def set_aside(self) -> None:
        """Remove the records from the pending ones; the group's lock is held."""
        # In this order: a snapshot has a record in one of the two.
        self._engine.state.settling.update(self.leases)
        for offset in self.leases:
            self._engine.state.pending.pop(offset, None)

    def done(self) -> None:
        """Apply the change, which is in the log; the commit lock is held. Idempotent."""
        if self._is_over:
            return
        state = self._engine.state
        for offset in self.leases:
            state.settling.pop(offset, None)
        state.consumed += len(self.leases)
        self._mark_done()
        self._is_over = True

    def _mark_done(self) -> None:
        if self._whole is not None:
            force_setattr(self._whole, "is_settled", True)
            return
        for delivery in self._deliveries:
            delivery.settled = True

    def failed(self) -> None:
        """Schedule the undo: the change is not in the log. The commit lock is held."""
        if not self._is_over:
            self._is_over = True
            self._engine.inbox.append(self.put_back)

    def put_back(self) -> None:
        """Make the records pending again; the group's lock is held."""
        engine = self._engine
        for offset, lease in self.leases.items():
            if engine.state.settling.pop(offset, None) is not None:
                engine.state.pending[offset] = lease
                engine.watch(lease.deadline, (offset,))


class Taken(Ticket):
    """Records that were delivered for good: at most once."""

    __slots__ = ()

    def _mark_done(self) -> None:
        """Leave the deliveries alone: there is nothing to acknowledge."""

    def put_back(self) -> None:
        """Make the records wait again; the group's lock is held."""
        engine = self._engine
        settling = engine.state.settling
        engine.take_back_for_good(
            [one for one in self._deliveries if settling.pop(one.offset, None) is not None]
        )
