"""The reports of verify and repair."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

Progress = Callable[[int, int, str], None]
"""Takes bytes done, bytes in all (an estimate), and what is being looked at."""


class Problem(msgspec.Struct, frozen=True):
    """Something that is not as it should be."""

    kind: str
    """`store`, `snapshot`, `log`, `log-missing`, `torn-tail`, `offsets`, `topic-name`, `segment`,
    `batch`, `segment-missing`, `unknown-topic`, `misplaced`, `order` or `cold`."""
    path: str
    """The file or directory; a name in the cold store for `cold`."""
    message: str
    repair: str
    """The remedy that `repair` has for it."""
    position: int | None = None
    topic: str | None = None
    first_offset: int | None = None
    last_offset: int | None = None

    def __str__(self) -> str:
        return f"{self.kind}: {_place(self)}: {self.message}"


class Action(msgspec.Struct, frozen=True):
    """Something that a repair did, or would do."""

    kind: str
    path: str
    message: str
    lost: str = ""
    """The records that cannot be read any more; empty when nothing is lost."""
    position: int | None = None
    topic: str | None = None
    first_offset: int | None = None
    last_offset: int | None = None

    def __str__(self) -> str:
        lost = f"; lost: {self.lost}" if self.lost else ""
        return f"{self.kind}: {_place(self)}: {self.message}{lost}"


class Counts(msgspec.Struct, frozen=True):
    """How much was looked at."""

    files: int = 0
    frames: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a verification or a repair."""

    path: str
    ok: bool
    """Nothing is wrong; after a repair: nothing is wrong any more, or would be."""
    problems: list[Problem]
    """Problems that were found; a repair lists those it found before it began."""
    counts: Counts
    duration: float
    """Seconds."""
    actions: list[Action] = []
    """Actions of a repair, in order."""
    notes: list[str] = []
    """Notes that are no problem and still good to know, such as what could not be checked."""
    dry_run: bool = False

    def __str__(self) -> str:
        counts = self.counts
        lines = [f"{self.path}: {_count(len(self.problems), 'problem') if self.problems else 'ok'}"]
        lines += [f"  {problem}" for problem in self.problems]
        if self.actions:
            lines.append("what a repair would do:" if self.dry_run else "what was done:")
            lines += [f"  {action}" for action in self.actions]
            lines.append(self._outcome())
        lines += [f"  note: {note}" for note in self.notes]
        lines.append(
            f"looked at {_count(counts.files, 'file')}, {_count(counts.frames, 'frame')} of the "
            f"log, {_count(counts.batches, 'batch', 'es')} of segments, "
            f"{_count(counts.records, 'record')}, {counts.bytes:,} bytes in "
            f"{self.duration:.1f} s"
        )
        return "\n".join(lines)

    def _outcome(self) -> str:
        if self.dry_run:
            return "nothing was changed; " + (
                "after this, the store would be whole" if self.ok else "not all can be repaired"
            )
        return "the store is whole again" if self.ok else "not all could be repaired"


@dataclass(slots=True)
class Tally:
    """Counts while they are counted, and the progress they make."""

    progress: Progress | None = None
    total: int = 0
    files: int = 0
    frames: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0

    def read(self, length: int, what: str) -> None:
        """So many more bytes were looked at."""
        self.bytes += length
        if self.progress is not None:
            self.progress(self.bytes, max(self.total, self.bytes), what)

    def add(self, counts: Counts, what: str) -> None:
        """Add what another process counted."""
        self.files += counts.files
        self.frames += counts.frames
        self.batches += counts.batches
        self.records += counts.records
        self.read(counts.bytes, what)

    def counts(self) -> Counts:
        """Return the counts so far."""
        return Counts(self.files, self.frames, self.batches, self.records, self.bytes)


def _place(item: Problem | Action) -> str:
    text = item.path
    if item.position is not None:
        text += f" at position {item.position}"
    about = [] if item.topic is None else [f"topic {item.topic!r}"]
    if item.first_offset is not None:
        about.append(f"offsets {item.first_offset} to {item.last_offset}")
    return f"{text} ({', '.join(about)})" if about else text


def _count(count: int, what: str, plural: str = "s") -> str:
    return f"{count:,} {what}{'' if count == 1 else plural}"
