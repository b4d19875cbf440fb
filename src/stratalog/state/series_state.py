"""A series topic as a projection: its series, their newest points, and the places of all points.

`apply` applies records once they are committed: live, in recovery and for a read-only view alike.
A record that could still fail to commit is never applied, so nothing has to be undone: a reader
first applies what was committed since, with `advance`.

Invariants:
- The effect of a record depends on its bytes and its offset alone.
- Applying a record again changes nothing: an interrupt leaves a state from which to continue.

Concurrency: `lock` guards everything but `void` and `drop`, which set a flag and return. A writer
calls `admit` before a record enters the log, which takes the lock for a moment.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from stratalog.errors import (
    CorruptionError,
    FormatError,
    StratalogError,
    TooLargeError,
    WrongKindError,
    WrongTypeError,
)
from stratalog.format.batch import Batch
from stratalog.format.point_records import Part, decode_records
from stratalog.format.points import FIELDS_MAX, MAGIC, Bools, FieldType, Int64s
from stratalog.format.series import (
    CURSOR_MAGIC,
    RULES_MAGIC,
    Cursor,
    Rules,
    decode_cursor,
    decode_rules,
)
from stratalog.memory_budget import MemoryBudget
from stratalog.state.projection import catch_up
from stratalog.state.series_blocks import Block, Blocks
from stratalog.state.series_capture import capture_state, restore_state
from stratalog.state.series_registry import KEY_BYTES, Registry

if TYPE_CHECKING:
    from stratalog.log.topic import TopicLog

# Points that one topic buffers at most, whatever the store's budget would allow.
_BUFFER_BYTES_MAX = 16 << 20

# Records that are decoded at a time: a batch may have a hundred thousand of one point each.
_RECORDS = 1 << 14


class SeriesState:
    """State of one series topic."""

    def __init__(self, topic: TopicLog) -> None:
        self.topic = topic
        self.lock = threading.RLock()
        self.applied = 0
        self.registry = Registry()
        self.blocks = Blocks()
        self.rules = Rules()
        self.cursor: Cursor | None = None
        self.series_max = 0
        """How many series a writer may have; 0 for a reader."""
        self.is_ready = False
        """Whether every record that was there when the store was opened is applied."""
        self._is_dropped = False
        self._claimed: set[bytes] = set()
        """Series of records that entered the log and are not applied yet."""
        self._claimed_fields: dict[str, FieldType] = {}
        self._budget: MemoryBudget | None = None
        self._accounted = 0

    # --- records -------------------------------------------------------------------------

    def apply(self, batch: Batch, first: int, end: int) -> None:
        """Apply the records of a batch from index `first` to `end`; the lock is held."""
        for start in range(first, end, _RECORDS):
            stop = min(end, start + _RECORDS)
            self._apply(batch.values(start, stop), batch.offsets(start, stop))
        self._account()

    def _apply(self, values: list[bytes | None], offsets: Int64s) -> None:
        run: list[int] = []
        for place, value in enumerate(values):
            magic = b"" if value is None else value[:4]
            if magic == MAGIC:
                run.append(place)
                continue
            self._take_points(values, offsets, run)
            run = []
            if magic == RULES_MAGIC:
                self._take_rules(decode_rules(value or b""))
            elif magic == CURSOR_MAGIC:
                self.cursor = decode_cursor(value or b"")
            else:
                raise CorruptionError(
                    f"series {self.topic.name!r}: the record at offset {int(offsets[place])} has "
                    "no points"
                )
        self._take_points(values, offsets, run)

    def _take_points(self, values: list[bytes | None], offsets: Int64s, run: list[int]) -> None:
        if not run:
            return
        places = slice(run[0], run[-1] + 1)
        own = offsets[places]
        try:
            parts = decode_records(values[places], own)  # type: ignore[arg-type]
            ids = [self.registry.apply(part) for part in parts]
        except FormatError as error:
            raise type(error)(
                f"series {self.topic.name!r}, offsets {int(own[0])} to {int(own[-1])}: {error}"
            ) from error
        self._claimed.difference_update(*(part.points.series for part in parts))
        bytes_max = _BUFFER_BYTES_MAX
        if self._budget is not None:
            bytes_max = min(bytes_max, self._budget.limit("series") // 4)
        self.blocks.extend(int(own[0]), int(own[-1]) + 1, parts, ids, bytes_max)

    def _take_rules(self, rules: Rules) -> None:
        if rules.evicted_before > self.rules.evicted_before:
            self.registry.forget(rules.evicted_before)
        self.rules = rules

    def advance(self) -> None:
        """Apply what was committed since; the lock is held."""
        end = self.topic.committed
        if self.applied < end:
            catch_up(self.topic, self, end)
        self.is_ready = True

    # --- snapshots -----------------------------------------------------------------------

    def capture(self) -> tuple[int, bytes]:
        """Encode the state, including everything committed by now; see `Projection`."""
        if self.topic.is_ephemeral:
            return 0, b""
        with self.lock:
            try:
                self.advance()
            except StratalogError:
                return 0, b""  # readers get the error; recovery starts from the records
            return self.applied, capture_state(self)

    def restore(self, applied: int, data: bytes) -> None:
        """Take over what `capture` returned."""
        with self.lock:
            restore_state(self, data)
            self.applied = applied

    def reset(self) -> None:
        """Discard the state: the records hold everything."""
        with self.lock:
            self.applied = 0
            self.is_ready = False
            self.registry, self.blocks = Registry(), Blocks()
            self.rules, self.cursor = Rules(), None
            self._account()

    def rebuild(self) -> None:
        """Discard the state, and apply all records again."""
        with self.lock:
            self.reset()
            self.advance()

    def void(self) -> None:
        """Do nothing: uncommitted records are not in the state."""

    def drop(self) -> None:
        """Release the memory."""
        self._is_dropped = True
        budget, self._budget = self._budget, None
        if budget is not None:
            budget.release("series", self)
            budget.add("series", -self._accounted)
        self._accounted = 0
        self.registry, self.blocks = Registry(), Blocks()

    # --- memory --------------------------------------------------------------------------

    def attach(self, budget: MemoryBudget, series_max: int) -> None:
        """Limit the memory by a writer's budget."""
        with self.lock:
            self.series_max = series_max
            if self._budget is None and not self._is_dropped:
                self._budget = budget
                budget.hold("series", self)
                self._account()

    @property
    def held_bytes(self) -> int:
        """Approximate bytes of the state in memory."""
        return self.registry.bytes + self.blocks.bytes

    def shed(self) -> bool:
        """Drop the buffered points, which the log has."""
        with self.lock:
            has_shed = self.blocks.close()
            self._account()
        return has_shed

    def _account(self) -> None:
        """Report the memory to the budget; drops what does not fit, if possible."""
        budget = self._budget
        if budget is None:
            return
        more = self.held_bytes - self._accounted
        if more > 0 and not budget.take("series", more):
            self.blocks.close()
            more = self.held_bytes - self._accounted
            budget.add("series", more)
        elif more <= 0:
            budget.add("series", more)
        self._accounted += more

    # --- writers -------------------------------------------------------------------------

    def admit(self, keys: Iterable[bytes], types: Mapping[str, FieldType]) -> None:
        """Admit records of these series and fields to the log; raises if they are not allowed."""
        if not self.is_ready:
            with self.lock:
                self.advance()  # brings the registry up to date
        self.check_source()
        known, claimed = self.registry.ids, self._claimed
        new = {key for key in keys if key not in known and key not in claimed}
        if not new and all(self.field_type(name) == type for name, type in types.items()):
            return
        budget = self._budget
        if new and budget is not None:  # with no lock held: others may have to release memory
            fields = len(self.registry.fields) + len(self._claimed_fields)
            budget.ensure("series", sum(KEY_BYTES + 16 + 9 * fields + len(key) for key in new))
        with self.lock:
            self._check_types(types)
            count = len(self.registry) + len(self._claimed | new)
            if self.series_max and count > self.series_max:
                raise TooLargeError(
                    f"Series {self.topic.name!r} would have {count} sets of tags, and "
                    f"{self.series_max} are possible. Use fewer values for its tags, or open the "
                    f"store with a larger series_max. Nothing was written."
                )
            self._claimed |= new
            self._claim_fields(types)

    def _claim_fields(self, types: Mapping[str, FieldType]) -> None:
        for name, type in types.items():
            if self.field_type(name) is None or type == FieldType.FLOAT:
                self._claimed_fields[name] = type

    def check_source(self) -> None:
        """Raise if the points are computed from those of another series."""
        if self.cursor is not None:
            raise WrongKindError(
                f"Series {self.topic.name!r} is downsampled from another one, and its points are "
                "computed. It can be read and queried, not written, and has no rules of its own."
            )

    def field_type(self, name: str) -> FieldType | None:
        """Return the type of a field, including records on their way; None if there is none."""
        newest = self.registry.fields.get(name)
        claimed = self._claimed_fields.get(name)
        if newest is None or claimed == FieldType.FLOAT:
            return claimed
        return newest.type

    def conflict(self, types: Mapping[str, FieldType]) -> str | None:
        """Return the first field that already has values of another type; None if there is none."""
        for name, type in types.items():
            known = self.field_type(name)
            if known not in (None, type) and {known, type} != {FieldType.INT, FieldType.FLOAT}:
                return name
        return None

    def _check_types(self, types: Mapping[str, FieldType]) -> None:
        name = self.conflict(types)
        if name is not None:
            known = self.field_type(name)
            assert known is not None
            raise WrongTypeError(
                f"Field {name!r} of series {self.topic.name!r} is {known.name.lower()}, and "
                f"{types[name].name.lower()} was given. Nothing was written: use another name "
                "for the field."
            )
        names = {*self.registry.fields, *self._claimed_fields, *types}
        if len(names) > FIELDS_MAX:
            raise TooLargeError(
                f"Series {self.topic.name!r} would have {len(names)} fields, and {FIELDS_MAX} are "
                "possible. Nothing was written."
            )

    # --- readers -------------------------------------------------------------------------

    def find(
        self, start: int, end: int, wanted: Bools | None
    ) -> tuple[list[Block], tuple[Part, ...]]:
        """Find blocks and buffered points that may match; the lock is held."""
        self.blocks.prune(self.topic.earliest)
        return self.blocks.find(start, end, wanted, self.topic.earliest)
