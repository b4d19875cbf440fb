"""Files of FluxMQ: segments of record batches, their indexes, and the state of consumer groups.

A store has `queues/<queue>/segments/<20-digit base offset>.seg`, with an `.idx` and a `.tix`
beside each; `queues/<queue>/consumers/<group>/` with the state of a group; and, where its broker
wrote it, `config/queues.json` and `groups/<queue>/<group>.json`. All numbers are little-endian.
Checksums are CRC-32C. `uvarint` is unsigned LEB128, `varint` is zig-zag, then LEB128.

A segment is batches back to back.

FluxMQ batch header, little-endian:

| field | type | meaning |
|---|---|---|
| magic | u32 | 0x464C5558 |
| checksum | u32 | CRC-32C of everything in the batch that follows |
| base_offset | u64 | offset of the first record |
| length | u32 | bytes of records after this header, as stored |
| count | u16 | records |
| flags | u16 | 1 compressed, 2 has times (always), 4 has keys, 8 has headers, 16 transactional |
| compression | u8 | 0 none, 1 S2 block, 2 zstd: the one configured, whether used or not |
| version | u8 | 1 |
| unused | u16 | zero |
| base_timestamp | i64 | milliseconds since 1970 |
| max_timestamp | i64 | milliseconds since 1970 |

A record: uvarint offset delta, varint time delta, varint key length (-1 for no key) and key,
varint value length (-1 for null) and value, uvarint number of headers, then per header uvarint
length and key, uvarint length and value. Records are compressed together if they have more than
256 bytes and get smaller.

FluxMQ offset index header, little-endian and packed:

| field | type | meaning |
|---|---|---|
| magic | u32 | 0x464C5849 |
| version | u8 | 1 |
| base_offset | u64 | that of the segment |
| count | u32 | entries; the file's size counts |
| interval | u32 | bytes of the segment between two entries |
| unused | 11s | zero |

FluxMQ offset index entry, little-endian:

| field | type | meaning |
|---|---|---|
| relative_offset | u32 | base offset of a batch, less that of the segment |
| position | u32 | byte place of the batch |

FluxMQ time index header, little-endian and packed:

| field | type | meaning |
|---|---|---|
| magic | u32 | 0x464C5854 |
| version | u8 | 1 |
| base_offset | u64 | that of the segment |
| count | u32 | entries |
| min_timestamp | i64 | milliseconds since 1970 |
| max_timestamp | i64 | milliseconds since 1970 |
| unused | 3s | zero |

FluxMQ time index entry, little-endian; a second or more apart:

| field | type | meaning |
|---|---|---|
| timestamp | i64 | largest time of a batch, milliseconds since 1970 |
| relative_offset | u32 | base offset of that batch, less that of the segment |

A group's `state.json`, `pel_0.json` to `pel_7.json` and `ops.log` are JSON. The first two are a
snapshot, the third has what happened since, a line each. An entry is in the file of its offset
modulo 8. Times are milliseconds since 1970.

- `state.json`: `version`, `group_id`, `state` with `AckFloor`, `Cursor`, `Delivered`, `CreatedAt`
  and `UpdatedAt`, `saved_at`.
- `pel_N.json`: `version`, `shard_id`, `entries` by offset with `o` offset, `c` consumer, `d` first
  delivered, `n` deliveries, `l` last attempt, `saved_at`.
- `ops.log`: `t` type, `o` offset (left out if 0), `os` offsets, `c` consumer, `ts` time. Types: 1
  deliver, 2 acknowledge, 3 acknowledge many, 4 give back, 5 claim, 6 claim many, 7 advance the
  floor, 8 set the cursor. A line that is broken ends the log.
- `groups/<queue>/<group>.json`: `version` 2, `state` with `ID`, `QueueName`, `Pattern`, `Mode`
  (`queue` unless it says `stream`), `AutoCommit`, `Cursor` (`Cursor`, `Committed`), `PEL` by
  consumer, `Consumers`, `CreatedAt`, `UpdatedAt`, `saved_at`. The low-level state counts, except
  for the mode and for groups of mode `stream`.
- `config/queues.json`: `version` 2, `configs` with a mapping per queue, `saved_at`. Durations are
  nanoseconds.
"""

from __future__ import annotations

import struct

import msgspec

MAGIC = 0x464C5558
INDEX_MAGIC = 0x464C5849
TIME_MAGIC = 0x464C5854
VERSION = 1

BATCH = struct.Struct("<IIQIHHBBHqq")
BATCH_BYTES = 44
assert BATCH.size == BATCH_BYTES
CHECKED_FROM = 8
"""The checksum covers the batch from here on."""

INDEX_HEADER = struct.Struct("<IBQII11s")
INDEX_HEADER_BYTES = 32
assert INDEX_HEADER.size == INDEX_HEADER_BYTES
INDEX = struct.Struct("<II")
INDEX_BYTES = 8
assert INDEX.size == INDEX_BYTES
INDEX_INTERVAL_BYTES = 4096

TIME_HEADER = struct.Struct("<IBQIqq3s")
TIME_HEADER_BYTES = 36
assert TIME_HEADER.size == TIME_HEADER_BYTES
TIME = struct.Struct("<qI")
TIME_BYTES = 12
assert TIME.size == TIME_BYTES
TIME_INTERVAL_MS = 1000

COMPRESSED, TIMES, KEYS, HEADERS = 1, 2, 4, 8
S2, ZSTD = 1, 2
SHARDS = 8
STATE_VERSION = 2

EXPIRES_AT = "_expires_at"
"""Header of a message: when it expires, in milliseconds since 1970, as decimal text."""

FILLER_EXPIRY_MS = 1
"""Expiry of a record without key and value that fills a hole."""

DELIVER, ACK, ACK_MANY, NACK, CLAIM, CLAIM_MANY, ADVANCE, SET_CURSOR = range(1, 9)
"""Types of operations in `ops.log`."""


class Entry(msgspec.Struct):
    """A record that was delivered and not acknowledged."""

    o: int
    """Its offset."""
    c: str
    """The consumer that has it."""
    d: int
    """When it was first delivered, in milliseconds since 1970."""
    n: int
    """How often it was delivered."""
    l: int  # noqa: E741  # FluxMQ's name
    """When it was last tried, in milliseconds since 1970."""


class PendingFile(msgspec.Struct):
    """`pel_<shard>.json`."""

    version: int
    shard_id: int
    entries: dict[str, Entry]
    saved_at: int = 0


class GroupNumbers(msgspec.Struct):
    """The progress of a group."""

    AckFloor: int = 0
    Cursor: int = 0
    Delivered: int = 0
    CreatedAt: int = 0
    UpdatedAt: int = 0


class StateFile(msgspec.Struct):
    """`state.json`."""

    version: int
    group_id: str
    state: GroupNumbers
    saved_at: int = 0


class OperationLine(msgspec.Struct, omit_defaults=True):
    """A line of `ops.log`; offset 0 is left out."""

    t: int
    o: int = 0
    os: list[int] = []
    c: str = ""
    ts: int = 0


class Cursor(msgspec.Struct):
    """The position of a group of the broker."""

    Cursor: int = 0
    Committed: int = 0


class BrokerPending(msgspec.Struct):
    """A pending record as the broker has it."""

    Offset: int
    ConsumerID: str
    ClaimedAt: str = "0001-01-01T00:00:00Z"
    DeliveryCount: int = 0


class BrokerGroup(msgspec.Struct):
    """A group as the broker has it."""

    ID: str
    QueueName: str
    Pattern: str = "#"
    Mode: str = "queue"
    AutoCommit: bool = True
    Cursor: Cursor = msgspec.field(default_factory=Cursor)
    PEL: dict[str, list[BrokerPending]] | None = {}
    Consumers: dict[str, msgspec.Raw] | None = {}
    CreatedAt: str = "0001-01-01T00:00:00Z"
    UpdatedAt: str = "0001-01-01T00:00:00Z"


class GroupFile(msgspec.Struct):
    """`groups/<queue>/<group>.json`."""

    version: int
    state: BrokerGroup
    saved_at: int = 0
