"""Who had which batch adopted: what makes a batch that is published twice one that is there once.

Batches of one writer are adopted in order, so that its newest tells of all before it. A writer that
has one batch alone is remembered for a while: it can come twice only while it is being retried.
"""

from __future__ import annotations

# 64 bytes a writer or so: a few megabytes at most, in memory and in a snapshot.
_WRITERS_MAX = 1 << 16
_ONCE_MAX = 1 << 12


class Writers:
    """Writers and their newest batches; those that were heard of least recently are forgotten."""

    def __init__(self) -> None:
        self.newest: dict[str, int] = {}
        self.once: dict[str, None] = {}

    def restore(self, newest: dict[str, int], once: list[str]) -> None:
        """Take in what a snapshot says."""
        for writer, batch in newest.items():
            self.note(writer, batch, once=False)
        for writer in once:
            self.note(writer, 0, once=True)

    def note(self, writer: str, batch: int, *, once: bool) -> None:
        """A batch was adopted."""
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
        """Whether a batch, or a later one of the same writer, was adopted."""
        return writer in self.once or self.newest.get(writer, -1) >= batch
