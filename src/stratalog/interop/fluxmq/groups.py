"""Consumer groups of FluxMQ: a snapshot, and the operations since.

For a group of mode `queue` the low-level state under `queues/` counts; for one of mode `stream`,
the broker's file under `groups/`. Everything below the cursor that is not pending is done. The
stored floor is not used: it begins at 0 and may be above a pending record.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from stratalog.errors import UnsupportedVersionError
from stratalog.fs import FileSystem
from stratalog.interop.codecs.text import nanoseconds
from stratalog.interop.files import join, read_file
from stratalog.interop.fluxmq import format as fluxmq
from stratalog.interop.model import OFFSET_MAX, Foreign, ForeignGroup, Pending, Problem
from stratalog.options import TIME_MAX

_COUNT_MAX = (1 << 31) - 1
_line_decoder = msgspec.json.Decoder(fluxmq.OperationLine)


class GroupReader:
    """Reads the groups of one queue."""

    def __init__(self, fs: FileSystem, foreign: Foreign, root: str, queue: str, title: str) -> None:
        self._fs = fs
        self._foreign = foreign
        self._root = root
        self._queue = queue
        self._title = title

    def read(self, end: int) -> list[ForeignGroup]:
        """Read all groups of the queue; no cursor is above its end."""
        low = join(self._root, "queues", self._queue, "consumers")
        high = join(self._root, "groups", self._queue)
        names = {*self._fs.listdir(low)}
        names |= {n.removesuffix(".json") for n in self._fs.listdir(high) if n.endswith(".json")}
        groups = [self._group(name, low, high) for name in sorted(names)]
        return [self._possible(group, end) for group in groups if group is not None]

    def _possible(self, group: ForeignGroup, end: int) -> ForeignGroup:
        """Return a group with possible numbers; reports others."""
        pending = [
            msgspec.structs.replace(
                one,
                delivery_count=min(max(one.delivery_count, 0), _COUNT_MAX),
                delivered_at=min(max(one.delivered_at, 0), TIME_MAX),
            )
            for one in group.pending
            if 0 <= one.offset < end
        ]
        numbers = group.cursor, group.deliveries, group.created_at
        kept = (
            min(max(group.cursor, 0), end),
            min(max(group.deliveries, 0), OFFSET_MAX),
            min(max(group.created_at, 0), TIME_MAX),
        )
        there = [one for one in group.pending if one.offset < end]
        is_strange = max(0, *numbers) > OFFSET_MAX or min(numbers) < 0
        if is_strange or there != pending:
            self._problem(
                join(self._root, "queues", self._queue), -1,
                f"Group {group.name!r} has numbers that cannot be.",
                "they are the nearest that can",
            )  # fmt: skip
        return ForeignGroup(
            group.topic, group.name, group.mode, kept[0], pending, *kept[1:],
            min(max(group.floor, 0), kept[0]),
        )  # fmt: skip

    def _group(self, name: str, low: str, high: str) -> ForeignGroup | None:
        broker: fluxmq.GroupFile | None = self._json(
            join(high, f"{name}.json"), fluxmq.GroupFile, "the broker's view of a group"
        )
        state = self._low_level(join(low, name))
        if broker is not None and broker.state.Mode == "stream":
            return ForeignGroup(
                self._title, name, "stream", broker.state.Cursor.Cursor,
                created_at=nanoseconds(broker.state.CreatedAt),
            )  # fmt: skip
        if state is None:
            return None if broker is None else self._broker_group(name, broker.state)
        numbers, pending = state
        return ForeignGroup(
            self._title, name, "queue", numbers.Cursor, pending, numbers.Delivered,
            numbers.CreatedAt * 10**6, numbers.AckFloor,
        )  # fmt: skip

    def _broker_group(self, name: str, state: fluxmq.BrokerGroup) -> ForeignGroup:
        pending = [
            Pending(one.Offset, consumer, one.DeliveryCount, nanoseconds(one.ClaimedAt))
            for consumer, entries in (state.PEL or {}).items()
            for one in entries
        ]
        return ForeignGroup(
            self._title, name, "queue", state.Cursor.Cursor,
            sorted(pending, key=lambda one: one.offset), 0, nanoseconds(state.CreatedAt),
            state.Cursor.Committed,
        )  # fmt: skip

    def _low_level(self, path: str) -> tuple[fluxmq.GroupNumbers, list[Pending]] | None:
        found: fluxmq.StateFile | None = self._json(
            join(path, "state.json"), fluxmq.StateFile, "the position of a group"
        )
        operations = read_file(self._fs, join(path, "ops.log"))
        if found is None and not operations:
            return None
        numbers = fluxmq.GroupNumbers() if found is None else found.state
        entries: dict[int, fluxmq.Entry] = {}
        for shard in range(fluxmq.SHARDS):
            name = join(path, f"pel_{shard}.json")
            some = self._json(name, fluxmq.PendingFile, "what is pending in one shard of a group")
            if some is not None:
                entries |= {entry.o: entry for entry in some.entries.values()}
        self._replay(join(path, "ops.log"), operations or b"", numbers, entries)
        pending = [
            Pending(one.o, one.c, one.n, one.l * 10**6) for _, one in sorted(entries.items())
        ]
        return numbers, pending

    def _replay(
        self,
        path: str,
        data: bytes,
        numbers: fluxmq.GroupNumbers,
        entries: dict[int, fluxmq.Entry],
    ) -> None:
        """Apply the operations since the snapshot, up to a broken line."""
        position = cursor = 0
        for line in data.splitlines(keepends=True):
            try:
                operation = _line_decoder.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                rest = data[position:].count(b"\n") or 1
                self._problem(
                    path, position, f"A line of operations is broken: {error}.",
                    f"{rest} operations from there on",
                )  # fmt: skip
                break
            position += len(line)
            apply(operation, numbers, entries)
            if operation.t in (fluxmq.ACK, fluxmq.ACK_MANY):
                cursor = numbers.Cursor
        # As in FluxMQ, which looks at the offset after the floor first, so 0 may stay pending.
        following = min((one for one in entries if one > numbers.AckFloor), default=cursor)
        numbers.AckFloor = max(numbers.AckFloor, min(following, cursor) - 1)

    def _json(self, path: str, kind: type[Any], what: str) -> Any:
        data = read_file(self._fs, path)
        if data is None:
            return None
        try:
            found = msgspec.json.decode(data, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            self._problem(path, -1, f"The file does not decode: {error}.", what)
            return None
        if found.version > fluxmq.STATE_VERSION:
            raise UnsupportedVersionError(
                f"{path} is of version {found.version}. This release reads versions up to "
                f"{fluxmq.STATE_VERSION}: upgrade stratalog."
            )
        return found

    def _problem(self, path: str, position: int, what: str, lost: str) -> None:
        place = os.path.relpath(path, self._root)
        self._foreign.problems.append(Problem(place, position, what, lost))


def apply(
    operation: fluxmq.OperationLine, numbers: fluxmq.GroupNumbers, entries: dict[int, fluxmq.Entry]
) -> None:
    """Apply one operation; unknown types change nothing."""
    offset, time = operation.o, operation.ts
    if operation.t == fluxmq.DELIVER:
        numbers.Delivered += 1
        numbers.Cursor = max(numbers.Cursor, offset + 1)
        entries[offset] = fluxmq.Entry(offset, operation.c, time, 1, time)
    elif operation.t in (fluxmq.ACK, fluxmq.ACK_MANY):
        for one in operation.os if operation.t == fluxmq.ACK_MANY else [offset]:
            entries.pop(one, None)
    elif operation.t in (fluxmq.NACK, fluxmq.CLAIM, fluxmq.CLAIM_MANY):
        for one in operation.os if operation.t == fluxmq.CLAIM_MANY else [offset]:
            if (entry := entries.get(one)) is not None:
                entry.n += 1
                entry.l = time
                if operation.t != fluxmq.NACK:
                    entry.c = operation.c
    elif operation.t == fluxmq.ADVANCE:
        numbers.AckFloor = max(numbers.AckFloor, offset)
    elif operation.t == fluxmq.SET_CURSOR:
        numbers.Cursor = offset


__all__ = ["GroupReader", "apply"]
