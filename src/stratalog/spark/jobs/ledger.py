"""The state of an export, in its destination: what was exported, and what is planned.

A round is planned before it begins: which offsets of which topic go into which unit. The plan is
written, then every unit is exported into files that are named by its offsets, then the round is
committed. An interrupted round is repeated with the same plan into the same files: so every record
is in one file, however often and wherever it was interrupted.

Crash: before the plan exists nothing has happened; after it, some of the round's files may exist,
each whole; the next run finds the plan and does the rest.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from stratalog.errors import CorruptionError, OptionError
from stratalog.spark.jobs.destination import STATE, Lake

T = TypeVar("T", bound=msgspec.Struct)


class ExportUnit(msgspec.Struct, frozen=True):
    """Offsets `start` to `end` (exclusive) of a topic."""

    topic: str
    topic_id: int
    start: int
    end: int


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One round."""

    number: int
    store: str
    """Identity of the store."""
    format: str
    schema: str | None
    made_at: int
    units: list[ExportUnit]


class ExportFile(msgspec.Struct, frozen=True):
    """A file that was exported."""

    name: str
    topic: str
    day: str
    records: int
    bytes: int
    first_offset: int
    last_offset: int
    first_timestamp: int
    """Microseconds, as in the file."""
    last_timestamp: int


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """A finished round."""

    number: int
    store: str
    format: str
    schema: str | None
    ends: dict[str, int]
    """The first offset that was not exported, by topic id, for every topic ever exported."""
    files: list[ExportFile]
    bad: int
    """Values that the schema could not parse."""


class Ledger:
    """Plans and commits in a destination."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    def last(self) -> Commit | None:
        """Return the newest finished round."""
        numbers = [int(n[:-5]) for n in self._lake.names(f"{STATE}/commits") if n.endswith(".json")]
        if not numbers:
            return None
        return self._read(f"{STATE}/commits/{max(numbers):020d}.json", Commit)

    def pending(self, number: int) -> Plan | None:
        """Return the plan of a round, if the round was planned and interrupted."""
        try:
            return self._read(_plan_name(number), Plan)
        except FileNotFoundError:
            return None

    def plan(self, plan: Plan) -> None:
        """Write a plan, before anything of it is done."""
        self._lake.put(_plan_name(plan.number), msgspec.json.encode(plan))

    def commit(self, commit: Commit) -> None:
        """Record that a round is finished."""
        name = f"{STATE}/commits/{commit.number:020d}.json"
        self._lake.put(name, msgspec.json.format(msgspec.json.encode(commit), indent=1))

    def _read(self, name: str, kind: type[T]) -> T:
        data = self._lake.get(name)
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.MsgspecError as error:
            raise CorruptionError(
                f"{self._lake.location}/{name} is not what an export wrote: {error}"
            ) from error


def check_same(last: Commit | Plan, store: str, format: str, schema: str | None) -> None:
    """Refuse to mix exports that do not belong together."""
    if last.store != store:
        raise OptionError(
            f"the destination has an export of another store ({last.store}): give this one a "
            "place of its own"
        )
    if (last.format, last.schema) != (format, schema):
        raise OptionError(
            f"the destination was begun with format {last.format!r} and schema {last.schema!r}: "
            "go on with those, or export to another place"
        )


def _plan_name(number: int) -> str:
    return f"{STATE}/plans/{number:020d}.json"
