"""The content of a fake disk, bytes and names, each with the changes a crash may still undo.

Owns: the live state, and the ordered changes since the last sync. The durable bytes of a file
are not stored: every pending change remembers what it overwrote, so durable is live with the
changes taken back. A sync is then forgetting a list, however large the file.

Crash: what survives comes from a seeded random.
- A file has its own chance, drawn once, that a change is kept whole; so that among many seeds
  some lose nearly everything and some nearly nothing. Each change is then decided on its own: a
  later write may survive an earlier one.
- A write that is not kept is dropped, torn (some of its sectors survive), or zeroed (the file
  is as long as if it had been written, but what it would have added reads as zeros).
- Bytes that were durable are never harmed by a write beside them: a sector is written whole.
- Of a directory's changes a prefix survives, as a journal would have it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Literal

Damage = Literal["random", "keep", "drop"]
"""The effect of a crash on pending changes: by the seed, keep all of them, or drop all of them."""

SECTOR_BYTES = 512

# More cuts in one torn write find nothing new, and a large write has thousands of sectors.
_CUTS_MAX = 8


@dataclass(slots=True)
class Write:
    """One pending write; `data` is None for zeros, which may be megabytes of preallocation."""

    position: int
    length: int
    data: bytes | None
    size_before: int
    overwritten: bytes

    def keep(self, image: bytearray) -> None:
        self._put(image, self.position, self.position + self.length)

    def harm(self, image: bytearray, random: Random) -> None:
        """Drop, tear or zero this write."""
        fate = random.choice(("dropped", "torn", "zeroed"))
        if fate == "torn":
            self._tear(image, random)
        elif fate == "zeroed":
            _extend(image, self.position + self.length)

    def undo(self, image: bytearray) -> None:
        image[self.position : self.position + len(self.overwritten)] = self.overwritten
        del image[self.size_before :]

    def _tear(self, image: bytearray, random: Random) -> None:
        """Keep some runs of sectors and lose those between them."""
        end = self.position + self.length
        boundaries = range((self.position // SECTOR_BYTES + 1) * SECTOR_BYTES, end, SECTOR_BYTES)
        cuts_max = min(len(boundaries), _CUTS_MAX)
        # A write inside one sector cannot tear: no cut, and it is kept or lost as one run.
        cuts = sorted(random.sample(boundaries, random.randint(1, cuts_max) if cuts_max else 0))
        is_kept = random.random() < 0.5
        for start, stop in zip([self.position, *cuts], [*cuts, end], strict=True):
            if is_kept:
                self._put(image, start, stop)
            is_kept = not is_kept
        if random.random() < 0.5:  # the length is metadata: it may arrive without the last run
            _extend(image, end)

    def _put(self, image: bytearray, start: int, stop: int) -> None:
        _extend(image, start)
        if self.data is None:
            _fill_zeros(image, start, stop)
        else:
            image[start:stop] = self.data[start - self.position : stop - self.position]


@dataclass(slots=True)
class Truncate:
    """One pending change of length, in either direction; it is kept or dropped."""

    size: int
    size_before: int
    cut: bytes

    def keep(self, image: bytearray) -> None:
        del image[self.size :]
        _extend(image, self.size)

    def harm(self, image: bytearray, random: Random) -> None:
        """Drop it."""

    def undo(self, image: bytearray) -> None:
        del image[self.size_before :]
        image += self.cut


@dataclass(slots=True, eq=False)
class Inode:
    """A file apart from its names."""

    live: bytearray = field(default_factory=bytearray)
    pending: list[Write | Truncate] = field(default_factory=list)
    holder: str | None = None  # who holds the lock on it
    number: int = field(default_factory=count(1).__next__)

    def write(self, position: int, data: bytes) -> None:
        self._write(position, len(data), data)

    def write_zeros(self, position: int, length: int) -> None:
        self._write(position, length, None)

    def truncate(self, size: int) -> None:
        if size != len(self.live):
            self._change(Truncate(size, len(self.live), bytes(self.live[size:])))

    def sync(self) -> None:
        self.pending.clear()

    def durable(self) -> bytearray:
        """The bytes as of the last sync."""
        image = self.live[:]
        for change in reversed(self.pending):
            change.undo(image)
        return image

    def survivor(self, random: Random, damage: Damage) -> Inode:
        """This file as the next boot finds it."""
        if damage == "keep" or not self.pending:
            return Inode(self.live[:], number=self.number)
        image = self.durable()
        if damage == "random":
            keep_chance = random.random()
            for change in self.pending:
                if random.random() < keep_chance:
                    change.keep(image)
                else:
                    change.harm(image, random)
        return Inode(image, number=self.number)

    def _write(self, position: int, length: int, data: bytes | None) -> None:
        if length:
            overwritten = bytes(self.live[position : position + length])
            self._change(Write(position, length, data, len(self.live), overwritten))

    def _change(self, change: Write | Truncate) -> None:
        self.pending.append(change)
        change.keep(self.live)


Change = tuple[tuple[str, Inode | None], ...]
"""Names and what each stands for afterwards (None: nothing), changed together or not at all."""


@dataclass(slots=True, eq=False)
class Directory:
    """Names of files; the directories below are durable at once and only listed."""

    live: dict[str, Inode] = field(default_factory=dict)
    durable: dict[str, Inode] = field(default_factory=dict)
    pending: list[Change] = field(default_factory=list)
    directories: set[str] = field(default_factory=set)
    holder: str | None = None
    """Who has locked it."""

    def change(self, *names: tuple[str, Inode | None]) -> None:
        self.pending.append(names)
        _rename(self.live, names)

    def sync(self) -> None:
        self.durable = dict(self.live)
        self.pending.clear()

    def surviving_names(self, random: Random, damage: Damage) -> dict[str, Inode]:
        """The names the next boot finds, with the files of before the crash."""
        if damage == "keep":
            return dict(self.live)
        names = dict(self.durable)
        if damage == "random":
            for change in self.pending[: random.randint(0, len(self.pending))]:
                _rename(names, change)
        return names


def _rename(names: dict[str, Inode], change: Change) -> None:
    for name, inode in change:
        if inode is None:
            names.pop(name, None)
        else:
            names[name] = inode


def _extend(image: bytearray, size: int) -> None:
    """Zeros up to `size`, when the image is shorter."""
    if size > len(image):
        image += bytes(size - len(image))


def _fill_zeros(image: bytearray, start: int, stop: int) -> None:
    inside = min(stop, len(image))
    if start < inside:
        image[start:inside] = bytes(inside - start)
    _extend(image, stop)
