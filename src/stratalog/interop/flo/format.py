"""Files of Flo: sealed segments of its unified log, and snapshots.

A data directory has a directory per shard, named by five digits. In `segs/`, `<first index, 10
digits>.flseg` is a sealed segment: header, entries, sparse index, footer. `segs/TRUNCATE` holds a
number: entries above it are void. What ends in `.tmp` was not finished. All numbers are
little-endian and packed. Checksums are CRC-32C.

Flo entry, little-endian:

| field | type | meaning |
|---|---|---|
| magic | u32 | 0x0A10E001 |
| version | u8 | 1 |
| type | u8 | what it does |
| flags | u16 | 1 LZ4, 2 zstd, 4 has a time to live, 8 tombstone |
| term | u64 | Raft term |
| index | u64 | from 1, one more for each |
| timestamp | i64 | nanoseconds since 1970 |
| length | u32 | bytes of the payload |
| checksum | u32 | CRC-32C of the header before it, then the payload |

Flo command, little-endian, the beginning of the payload of every type below 0xE0; key and value
follow:

| field | type | meaning |
|---|---|---|
| namespace | u32 | hash of its name; zero is the default |
| key_length | u16 | bytes of the key |
| value_length | u32 | bytes of the value |

Types that are read here: 0x01 put and 0x02 delete of a key (the value is taken as it is: where a
time to live is put is not known), 0x10 an append to the stream that the key names, 0x20 a message
for the queue that the key names (u32 priority, then the message), 0x21 and 0x22 the end and the
return of a message (key is its index, u64), 0x30 and 0x31 points of a series.

Flo segment header, little-endian:

| field | type | meaning |
|---|---|---|
| magic | 8s | `FLO_SEG` and a zero |
| version | u16 | 1 |
| partition | u32 | number of the partition |
| first_index | u64 | of its first entry |
| last_index | u64 | of its last entry |
| first_timestamp | i64 | nanoseconds since 1970 |
| last_timestamp | i64 | nanoseconds since 1970 |
| count | u32 | entries |
| data_bytes | u32 | bytes of all entries |
| compression | u8 | what was configured; entries are stored as they are |
| commit_index | u64 | up to where entries were committed when it was sealed |
| unused | u8 | zero |

Flo index entry, little-endian, for entry 0, 256, 512 and so on:

| field | type | meaning |
|---|---|---|
| index | u64 | of the entry |
| position | u32 | bytes from the first entry |

Flo segment footer, little-endian:

| field | type | meaning |
|---|---|---|
| index_position | u32 | where the sparse index begins in the file |
| index_count | u32 | entries of the sparse index |
| types | u32 | bit (type modulo 32) is set for each type there is |
| bloom | u32 | zero |
| checksum | u32 | CRC-32C of the file before the footer |
| reserved | u32 | zero |
| magic | 8s | `FLO_END` and a zero |

Flo snapshot header, little-endian, of a file `<index, 10 digits>-<nanoseconds>.fsnap`, in `snaps/`
or in the shard's directory:

| field | type | meaning |
|---|---|---|
| magic | 8s | `FLO_SNP` and a zero |
| version | u16 | 2 |
| partition | u32 | number of the partition |
| index | u64 | of the last entry that is in it |
| term | u64 | Raft term |
| timestamp | i64 | nanoseconds since 1970 |
| sections | u32 | number of sections, 16 at most |
| file_bytes | u64 | bytes of the whole file |
| reserved | 14s | zero |

Flo snapshot section, little-endian, before the bytes of each:

| field | type | meaning |
|---|---|---|
| type | u8 | 1 keys, 2 queues, 3 series, 4 streams |
| reserved | 3s | zero |
| length | u64 | bytes that follow, in an encoding that is not known |

Flo snapshot footer, little-endian:

| field | type | meaning |
|---|---|---|
| checksum | u32 | CRC-32C of everything before it |
| magic | 8s | `FLO_SNE` and a zero |
| reserved | u32 | zero |

`MANIFEST` has the file name of the newest snapshot. `SYSTEM`, in the data directory, is JSON:
`shards`, `partitions`, `created_at` and `version`. `cold.fcold` lists segments that were moved to
an object store, in an encoding that is not known: their entries are reported as missing. A file of
entries that are not sealed does not exist: these are in memory only.

`.stratalog_state.json` is ours, in the data directory, and written where Flo has no place for
something: the names of tables, whose keys have a prefix there, and when keys expire, by index.
"""

from __future__ import annotations

import struct

ENTRY_MAGIC = 0x0A10E001
VERSION = 1

ENTRY = struct.Struct("<IBBHQQqII")
ENTRY_BYTES = 40
assert ENTRY.size == ENTRY_BYTES

COMMAND = struct.Struct("<IHI")
COMMAND_BYTES = 10
assert COMMAND.size == COMMAND_BYTES
KEY_BYTES_MAX = (1 << 16) - 1

SEGMENT = struct.Struct("<8sHIQQqqIIBQB")
SEGMENT_BYTES = 64
assert SEGMENT.size == SEGMENT_BYTES
SEGMENT_MAGIC = b"FLO_SEG\0"

INDEX = struct.Struct("<QI")
INDEX_BYTES = 12
assert INDEX.size == INDEX_BYTES
INDEX_STRIDE = 256

FOOTER = struct.Struct("<IIIIII8s")
FOOTER_BYTES = 32
assert FOOTER.size == FOOTER_BYTES
FOOTER_MAGIC = b"FLO_END\0"

SNAPSHOT = struct.Struct("<8sHIQQqIQ14s")
SNAPSHOT_BYTES = 64
assert SNAPSHOT.size == SNAPSHOT_BYTES
SNAPSHOT_MAGIC = b"FLO_SNP\0"
SNAPSHOT_VERSION = 2

SECTION = struct.Struct("<B3sQ")
SECTION_BYTES = 12
assert SECTION.size == SECTION_BYTES
SECTIONS_MAX = 16

SNAPSHOT_FOOTER = struct.Struct("<I8sI")
SNAPSHOT_FOOTER_BYTES = 16
assert SNAPSHOT_FOOTER.size == SNAPSHOT_FOOTER_BYTES
SNAPSHOT_FOOTER_MAGIC = b"FLO_SNE\0"

KV_PUT, KV_DELETE = 0x01, 0x02
KV_BATCH, KV_ADD, KV_TOUCH = 0x03, 0x04, 0x05
STREAM_APPEND = 0x10
QUEUE_PUT, QUEUE_ACK, QUEUE_NACK = 0x20, 0x21, 0x22
SERIES_WRITE, SERIES_WRITE_MANY = 0x30, 0x31
COMMANDS_END = 0xE0
"""Types from here on have special payloads, and no user data."""

LZ4, ZSTD, TTL, TOMBSTONE = 1, 2, 4, 8
TRUNCATE_NAME = "TRUNCATE"
SYSTEM_NAME = "SYSTEM"
