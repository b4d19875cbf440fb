"""The contents of a foreign directory, in terms common to all layouts.

A layout's reader converts a directory to a `Foreign`; its writer converts a `Foreign` to a
directory. Importing and exporting are two loops over these, common to all layouts.

Record batches have the columns of `SCHEMA`. Offsets are those of the original where the layout has
them, increase within a topic, and may leave holes; a hole that is loss is also in
`ForeignTopic.gaps`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import pyarrow as pa

from stratalog.format.arrow import TYPES
from stratalog.model import Gap

# Other layouts have one time for a record: that of the log.
SCHEMA = pa.schema([(name, type) for name, type in TYPES.items() if name != "event_time"])
"""Columns of every record batch: those of `topic.read_arrow`, and those that only queues use."""

OFFSET_MAX = (1 << 62) - 1
"""Highest number of a record that is accepted."""

HOLE_MAX = 1 << 33
"""How many offsets may be missing in one place: a set of these has a few megabytes."""


class Problem(msgspec.Struct, frozen=True):
    """A place of a foreign directory that is damaged, torn or not understood."""

    path: str
    """File, relative to the directory."""
    position: int
    """Position in that file; -1 for the file as a whole."""
    what: str
    """The problem, in one sentence."""
    lost: str
    """The data that cannot be read because of it, in one phrase; empty if nothing is lost."""


class Pending(msgspec.Struct, frozen=True):
    """A record that was delivered to a consumer and not acknowledged."""

    offset: int
    consumer: str
    delivery_count: int
    delivered_at: int = 0
    """When it was last delivered, in nanoseconds since 1970."""
    deadline: int = 0
    """When its lease ends, in nanoseconds since 1970; 0 where the layout has no leases."""
    reason: str = ""
    """Why it was last given back."""


class ForeignGroup(msgspec.Struct, frozen=True):
    """A consumer group."""

    topic: str
    name: str
    mode: str
    """`queue` or `stream`."""
    cursor: int
    """The next offset to deliver."""
    pending: list[Pending] = []
    """Records that were delivered and not acknowledged; all others below the cursor are done."""
    deliveries: int = 0
    created_at: int = 0
    floor: int = 0
    """Everything up to this offset is done, as the layout has it; pending records count."""


class DedupId(msgspec.Struct, frozen=True):
    """A deduplication id that is still valid."""

    id: bytes
    """The id as the layout stores it, which may be a digest of the caller's."""
    offset: int
    put_at: int
    expires_at: int


class ForeignTopic(msgspec.Struct):
    """A topic, a queue, a table or a series: its records, and its state."""

    name: str
    kind: str
    """`topic`, `queue`, `dead` (letters of a queue), `table` or `series`."""
    first: int
    """Offset of its first record, or the one it would begin with."""
    end: int
    """The offset that its next record would get."""
    batches: Callable[[], Iterator[pa.RecordBatch]]
    """Reads the records, from the beginning at each call. Problems are added to
    `Foreign.problems` and to `gaps` while it is read."""
    gaps: list[Gap] = []
    """Offsets that are lost; complete once all batches were read."""
    pieces: list[Callable[[], Iterator[pa.RecordBatch]]] = []
    """The records in parts that can be read separately, in order; empty if they cannot."""
    options: dict[str, object] = {}
    """Options of ours that correspond to those of the layout."""
    cursor: int | None = None
    """For a queue: everything below this offset was consumed, except pending messages."""
    done: list[int] = []
    """For a queue: offsets from the cursor on that were consumed all the same."""
    pending: list[Pending] = []
    """For a queue: messages delivered or given back and not acknowledged, with counts."""
    dedup: list[DedupId] = []
    """For a queue: deduplication ids that are still valid."""
    dead: str | None = None
    """For a queue: the name of the topic, here, with its dead letters."""


class ForeignRoute(msgspec.Struct, frozen=True):
    """A rule that forwards records of one topic to another."""

    name: str
    source: str
    destination: str
    tag: str | None = None
    """An exact tag, or a glob that ends with `*`; None forwards everything."""
    cursor: int = 0
    keeps_node: bool = False
    keeps_tag: bool = False
    allows_cycle: bool = False


class Foreign(msgspec.Struct):
    """A foreign directory, read or to be written."""

    layout: str
    path: str
    contents: dict[str, ForeignTopic] = {}
    """Topics, queues, tables and series by name."""
    groups: list[ForeignGroup] = []
    routes: list[ForeignRoute] = []
    problems: list[Problem] = []
    """Complete once all batches were read."""

    @property
    def topics(self) -> dict[str, pa.RecordBatchReader]:
        """Return the records of every topic, queue, table and series, by name, as Arrow batches."""
        return {
            name: pa.RecordBatchReader.from_batches(SCHEMA, found.batches())
            for name, found in self.contents.items()
        }

    @property
    def queues(self) -> dict[str, ForeignTopic]:
        """Return the queues, by name."""
        return {name: one for name, one in self.contents.items() if one.kind == "queue"}
