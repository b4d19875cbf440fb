"""The newest adopted batch of each writer: a batch that is published twice is adopted once.

Batches of one writer are adopted in order, so its newest covers all before it. A writer with a
single batch is remembered for a while: its batch can come twice only while it is retried.
"""

from __future__ import annotations

# About 64 bytes a writer: a few megabytes at most, in memory and in a snapshot.
_WRITERS_MAX = 1 << 16
_ONCE_MAX = 1 << 12


class Writers:
    """Writers and their newest batches; the least recently seen are forgotten."""

    def __init__(self) -> None:
        self.newest: dict[str, int] = {}
        self.once: dict[str, None] = {}

    def restore(self, newest: dict[str, int], once: list[str]) -> None:
        """Take over the writers of a snapshot."""
        for writer, batch in newest.items():
            self.note(writer, batch, once=False)
        for writer in once:
            self.note(writer, 0, once=True)

    def note(self, writer: str, batch: int, *, once: bool) -> None:
        """Note that a batch was adopted."""
        if once:
            self.once.pop(writer, None)
            self.once[writer] = None
            if len(self.once) > _ONCE_MAX:
                del self.once[next(iter(self.once))]
            return
        known = self.newest.pop(writer, 0)
        self.newest[writer] = max(batch, known)
        if len(self.newest) > _WRITERS_MAX:
            del self.newest[next(iter(self.newest))]

    def is_adopted(self, writer: str, batch: int) -> bool:
        """Return whether a batch, or a later one of the same writer, was adopted."""
        return writer in self.once or self.newest.get(writer, -1) >= batch
