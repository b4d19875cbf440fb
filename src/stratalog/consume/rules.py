"""The rules of a group, from its options."""

from __future__ import annotations

from typing import NamedTuple

from stratalog.options import QueueOptions

UNBOUNDED = 1 << 62


class Rules(NamedTuple):
    """The rules of one group or queue; times are nanoseconds."""

    lease: int = 30 * 10**9
    is_at_most_once: bool = False
    max_deliveries: int = 0
    """0 is no limit."""
    pending_max: int = UNBOUNDED
    promote_after: int = 0
    """0 is never."""
    backoff: int = 0
    backoff_max: int = 300 * 10**9

    def delay(self, delivery_count: int) -> int:
        """Return how long a record that was given back waits: twice as long each time."""
        if not self.backoff:
            return 0
        doublings = min(max(delivery_count - 1, 0), 62)
        return min(self.backoff << doublings, self.backoff_max)

    @classmethod
    def of(cls, options: QueueOptions) -> Rules:
        """Derive the rules from a queue's options."""
        return cls(
            round(options.lease * 1e9),
            options.delivery == "at_most_once",
            options.max_deliveries,
            options.pending_max,
            0 if options.promote_after is None else round(options.promote_after * 1e9),
            round(options.backoff * 1e9),
            round(options.backoff_max * 1e9),
        )
