"""Numbered objects of a whole store: routes and schedules.

They belong to no topic, so that they outlive the topics they name.

Invariants:
- Frames may be applied in any order and again: the highest number of a change wins, and what was
  dropped stays dropped.
- A number is never used again.

Concurrency: frames are applied in log order by the holder of a commit lock, or by recovery. Readers
take no lock: fields are replaced one by one, and the dictionary is copied by `all`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

NUMBER_MAX = (1 << 63) - 1


class Body(Protocol):
    """The definition of one of them, as its frames have it."""

    @property
    def id(self) -> int:
        """Its number."""

    @property
    def is_dropped(self) -> bool:
        """Whether it was dropped."""


BodyT = TypeVar("BodyT", bound=Body)


class Defined(Generic[BodyT]):
    """One of them: its definition, and the number of the change that it is at."""

    __slots__ = ("body", "id", "version")

    def __init__(self, id: int) -> None:
        self.id = id
        self.body: BodyT | None = None
        """None until the frame that creates it is read, which may be in another shard."""
        self.version = -1

    def redefine(self, version: int, body: BodyT) -> None:
        """Take a definition over, unless a newer one is known."""
        if version > self.version:
            self.version, self.body = version, body


StateT = TypeVar("StateT", bound=Defined)  # type: ignore[type-arg]  # any body


class Numbered(ABC, Generic[StateT, BodyT]):
    """All objects of one kind in a store."""

    def __init__(self) -> None:
        self._by_id: dict[int, StateT] = {}
        self._dropped: set[int] = set()
        self._dropped_below = 1
        """Unknown ones with smaller numbers were dropped."""
        self.next_id = 1

    @abstractmethod
    def _new(self, id: int) -> StateT:
        """Create one of which only the number is known."""

    def all(self) -> list[StateT]:
        """List every one that was not dropped, in order of creation."""
        found = [state for state in self._by_id.copy().values() if state.body is not None]
        return sorted(found, key=lambda state: state.id)

    def get(self, id: int) -> StateT | None:
        """Return the one of that number, unless it was dropped."""
        return self._by_id.get(id)

    def define(self, version: int, body: BodyT) -> None:
        """Apply a frame that creates, changes or drops one."""
        if body.is_dropped:
            self._dropped.add(body.id)
            self._by_id.pop(body.id, None)
        else:
            state = self.mentioned(body.id)
            if state is not None:
                state.redefine(version, body)
        # Last: a snapshot that has this number has the object as well.
        self.next_id = max(self.next_id, body.id + 1)

    def mentioned(self, id: int) -> StateT | None:
        """Return the one of a number, created on first mention; None if it was dropped."""
        state = self._by_id.get(id)
        if state is None and id not in self._dropped and id >= self._dropped_below:
            state = self._by_id[id] = self._new(id)
        return state

    def restored(self, next_id: int, bodies: Iterable[BodyT]) -> list[StateT | None]:
        """Remove those that a snapshot lacks; returns those that it has, None for dropped ones."""
        bodies = list(bodies)
        present = {body.id for body in bodies}
        for id in list(self._by_id):
            if id < next_id and id not in present:
                del self._by_id[id]
        found = [
            None
            if body.id in self._dropped
            else self._by_id.setdefault(body.id, self._new(body.id))
            for body in bodies
        ]
        self.next_id = max(self.next_id, next_id)
        self._dropped_below = max(self._dropped_below, next_id)
        return found
