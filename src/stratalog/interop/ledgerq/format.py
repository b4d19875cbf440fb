"""Files of LedgerQ: segments, sparse indexes, the read position, retries and deduplication.

A queue is a directory. `<20 digits>.log` is a segment: a header, then entries. The number in its
name is its base, which orders segments and says nothing about message ids. `<20 digits>.idx` is
its sparse index, written when the segment is closed. Dead letters are a queue directory of their
own. All numbers are little-endian. Checksums are CRC-32C.

LedgerQ segment header, little-endian:

| field | type | meaning |
|---|---|---|
| magic | u32 | 0x4C445151 |
| version | u16 | 1 |
| flags | u16 | zero |
| base | u64 | the number in the file's name |
| created_at | i64 | nanoseconds since 1970 |
| first_id | u64 | smallest message id; zero until the segment is closed |
| last_id | u64 | largest message id; zero until the segment is closed |
| unused | 20s | zero |
| checksum | u32 | CRC-32C of the bytes before it |

LedgerQ entry, little-endian:

| field | type | meaning |
|---|---|---|
| length | u32 | bytes of the entry without the four zero bytes that follow it |
| type | u8 | 1 message, 2 tombstone, 3 checkpoint; only 1 is written |
| flags | u8 | 1 compressed, 2 encrypted, 4 expires, 8 has headers, 16 has a priority |
| id | u64 | message id, from 1 |
| timestamp | i64 | nanoseconds since 1970 |

Then, each only if its flag is set: the priority (u8: 1 medium, 2 high; low is 0 and has no byte),
the time at which it expires (i64, nanoseconds), the headers (u16 count, then per header u16 length
and key, u16 length and value, UTF-8), the compression (u8: 1 gzip). The payload follows, then the
CRC-32C (u32) of everything before it, length included. Four zero bytes that no checksum covers end
the entry: they may be missing at the end of a file.

LedgerQ index header, little-endian:

| field | type | meaning |
|---|---|---|
| magic | u32 | 0x4C445149 |
| version | u16 | 1 |
| unused | u16 | zero |
| base | u64 | that of the segment |
| count | u64 | entries that follow |
| reserved | u32 | zero |
| checksum | u32 | CRC-32C of the bytes before it |

LedgerQ index entry, little-endian; the first entry of a segment, then one per 4096 bytes:

| field | type | meaning |
|---|---|---|
| id | u64 | message id |
| position | u64 | byte place of its entry in the segment |
| timestamp | i64 | nanoseconds since 1970 |

LedgerQ metadata, little-endian, in `metadata.dat`, overwritten in place:

| field | type | meaning |
|---|---|---|
| version | u32 | 1 |
| next_id | u64 | the id that the next message gets |
| read_id | u64 | the next id to read: everything below it was consumed |
| reserved | u32 | zero |

`.retry_state.json` has failure counts of messages that were given back: `version` 1, `max_retries`,
`entries` with `msg_id`, `retry_count`, `last_failure` (RFC 3339) and `failure_reason`.
`.dedup_state.json` has deduplication ids: `version` 1, `entries` with `dedup_id` (the lower-case
hexadecimal SHA-256 of what the caller gave), `message_id`, `offset` (the entry's place in its
segment), `enqueued_at` and `expires_at` (nanoseconds since 1970). Both are JSON.

`.stratalog_state.json` is ours: LedgerQ has one read position and passes this file over. It has the
ids from that position on that were consumed all the same, as pairs of first and last. It counts
while `metadata.dat` is what it was.
"""

from __future__ import annotations

import struct

import msgspec

MAGIC = 0x4C445151
INDEX_MAGIC = 0x4C445149
VERSION = 1

HEADER = struct.Struct("<IHHQqQQ20sI")
HEADER_BYTES = 64
assert HEADER.size == HEADER_BYTES

ENTRY = struct.Struct("<IBBQq")
ENTRY_BYTES = 22
assert ENTRY.size == ENTRY_BYTES

CHECKSUM = struct.Struct("<I")
CHECKSUM_BYTES = 4
PADDING_BYTES = 4
LENGTH_MIN = ENTRY_BYTES + CHECKSUM_BYTES
"""Smallest `length`: an entry without a payload."""

INDEX_HEADER = struct.Struct("<IHHQQII")
INDEX_HEADER_BYTES = 32
assert INDEX_HEADER.size == INDEX_HEADER_BYTES

INDEX = struct.Struct("<QQq")
INDEX_BYTES = 24
assert INDEX.size == INDEX_BYTES
INDEX_INTERVAL_BYTES = 4096

METADATA = struct.Struct("<IQQI")
METADATA_BYTES = 24
assert METADATA.size == METADATA_BYTES

MESSAGE = 1
COMPRESSED, ENCRYPTED, EXPIRES, HEADERS, PRIORITY = 1, 2, 4, 8, 16
FLAGS = COMPRESSED | ENCRYPTED | EXPIRES | HEADERS | PRIORITY
GZIP = 1

SEGMENT_SUFFIX = ".log"
INDEX_SUFFIX = ".idx"
METADATA_NAME = "metadata.dat"
RETRY_NAME = ".retry_state.json"
DEDUP_NAME = ".dedup_state.json"
CONSUMED_NAME = ".stratalog_state.json"
NAME_DIGITS = 20
DEAD_SUFFIX = "-dlq"
"""Suffix of the directory with a queue's dead letters, beside that of the queue."""

DEAD_ID = "dlq.original_msg_id"
"""Header of a dead letter: the id that it had in its queue."""
DEAD_COUNT = "dlq.retry_count"
DEAD_REASON = "dlq.failure_reason"
DEAD_TIME = "dlq.last_failure"
REASON_BYTES_MAX = 256

FILLER_NANOSECONDS = 1
"""Lifetime of an empty message that fills a hole: LedgerQ requires more than zero."""


class Retry(msgspec.Struct):
    """A message that was given back, in `.retry_state.json`."""

    msg_id: int
    retry_count: int
    last_failure: str
    failure_reason: str = ""


class RetryState(msgspec.Struct):
    """`.retry_state.json`."""

    version: int
    max_retries: int
    entries: list[Retry] | None = None


class Dedup(msgspec.Struct):
    """A deduplication id, in `.dedup_state.json`."""

    dedup_id: str
    message_id: int
    offset: int
    enqueued_at: int
    expires_at: int


class DedupState(msgspec.Struct):
    """`.dedup_state.json`."""

    version: int
    entries: list[Dedup] | None = None


class ConsumedState(msgspec.Struct):
    """`.stratalog_state.json`."""

    version: int
    next_id: int
    read_id: int
    """As in `metadata.dat`."""
    consumed: list[tuple[int, int]] = []
    """First and last id of each run."""
