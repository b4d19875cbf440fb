"""Files of topics: write-ahead logs, a snapshot, and sealed segments.

`wal/wal-<16 digits>.log`, or `wal/shard-NN/wal-<16 digits>.log` with several shards, hold frames;
zeros that were prepared follow the last one. `meta/snapshot-<16 digits>.bin` has every live record
up to a place in each log. `topics/<id, 8 hexadecimal digits>/seg-<first, 16 digits>.data` and
`.idx` are sealed segments, there or in the cold directory. Numbers of fixed width are
little-endian. Checksums are XXH3-64 with seed 0. Times are milliseconds since 1970.

topics frame, little-endian:

| field | type | meaning |
|---|---|---|
| length | u32 | bytes after this field |
| type | u8 | see below |
| flags | u8 | 1 has a tag, 2 has a node, 4 durable |
| topic_id | u64 | zero for frames of no topic |
| seq | u64 | of an append or a lease, else zero |
| timestamp | i64 | milliseconds since 1970 |
| node_length | u16 | bytes of the node |
| tag_length | u16 | bytes of the tag |
| data_length | u32 | bytes of the data |

Node, tag and data follow, then the checksum (u64) of everything after the length. A frame that is
shorter than possible, goes past the end, or does not match its checksum ends the log.

Types: 1 append (data is JSON, `{"d":...}` or `{"d":...,"m":...}`), 2 a topic is made or changed
and 3 dropped (name, configuration), 4 a router is made (name, source, destination, bits u8, match,
cursor u64, destination base u64) and 5 dropped (name), 6 delete (u8 has-before and u64, match, u32
count and seqs u64, u8 has-bound and u64), 7 eviction (evict floor, earliest, expiry floor, u64
each), 8 checkpoint (u64), 10 lease (u8 event, lease u64, deadline u64, deliveries u64, node), 11
seqs that are reserved (u64). Names, configurations and nodes are a u32 length and bytes. A match
is a u8 0, or a u8 1, an operator (u8: 0 equal, 1 begins with) and text.

topics snapshot header, little-endian:

| field | type | meaning |
|---|---|---|
| magic | 4s | `SNP1` |
| version | u32 | 3 |
| length | u32 | bytes of the body |
| checksum | u64 | XXH3-64 of the body |

The body is in postcard's encoding: numbers are LEB128 (signed ones zig-zag before), texts, bytes
and lists have their length before them, options and booleans are one byte. In this order it has:

1. id, time, next topic id;
2. file, position and number of the checkpoint; a list of (file, position), one per log; a list of
   the names of these logs: empty for `wal/` itself, else that of its directory;
3. a list of topics: name, id, epoch, configuration (JSON as bytes), first number, newest number,
   floors of eviction, expiry and deletion, the number below which all was deleted, bytes, live
   records; a list of records; the floor below which the sources of routers were trimmed. A record:
   number, time (signed), node and tag (options), data and meta (JSON as bytes, meta an option),
   bytes;
4. a list of routers: name, source, destination; keep node, keep tag, create destination, allow
   cycle, exactly once (booleans); a match (an option: operator and text); position in the source,
   records forwarded, base in the destination.

Records that a router made are in no log: the server makes them again from the source's records
after the router's position.

topics segment frame, little-endian:

| field | type | meaning |
|---|---|---|
| length | u32 | bytes after this field |
| flags | u8 | 1 has a tag, 2 has a node |
| seq | u64 | number of the record |
| timestamp | i64 | milliseconds since 1970; zero in what fills a hole |
| node_length | u16 | bytes of the node |
| tag_length | u16 | bytes of the tag |
| data_length | u32 | bytes of the data |

Node, tag and data follow, then the checksum (u64) of everything between the length and itself, and
a byte that no checksum covers: 0xD5 if the record was deleted.

topics index entry, little-endian, one per record of a segment, in the `.idx` beside it; entry `i`
is of the record whose number is the segment's first and `i`:

| field | type | meaning |
|---|---|---|
| position | u32 | byte place of the frame in the segment |
| length | u32 | bytes of the whole frame |
| timestamp | u64 | milliseconds since 1970 |
| flags | u8 | 1 has a tag, 2 has a node |
| unused | 3s | zero |

`.topics.lock` has the text `pid=` and a number: a running server holds a lock on it.
"""

from __future__ import annotations

import struct

FRAME = struct.Struct("<IBBQQqHHI")
FRAME_BYTES = 38
assert FRAME.size == FRAME_BYTES
CHECKSUM_BYTES = 8
LENGTH_MIN = FRAME_BYTES - 4 + CHECKSUM_BYTES
"""Smallest `length` of a frame."""
assert LENGTH_MIN == 42

SNAPSHOT = struct.Struct("<4sIIQ")
SNAPSHOT_BYTES = 20
assert SNAPSHOT.size == SNAPSHOT_BYTES
SNAPSHOT_MAGIC = b"SNP1"
SNAPSHOT_VERSION = 3

SEGMENT_FRAME = struct.Struct("<IBQqHHI")
SEGMENT_FRAME_BYTES = 29
assert SEGMENT_FRAME.size == SEGMENT_FRAME_BYTES
SEGMENT_LENGTH_MIN = SEGMENT_FRAME_BYTES - 4 + CHECKSUM_BYTES + 1
DELETED = 0xD5

INDEX = struct.Struct("<IIQB3s")
INDEX_BYTES = 20
assert INDEX.size == INDEX_BYTES

(APPEND, TOPIC, DROP, ROUTER, DROP_ROUTER, DELETE, EVICT, CHECKPOINT, CONFIG, LEASE, HEAD) = range(
    1, 12
)
HAS_TAG, HAS_NODE, DURABLE = 1, 2, 4

CLAIMED, RELEASED, EXTENDED, ACKED = range(4)
"""Events of a lease."""

KEEP_NODE, KEEP_TAG, CREATE_DESTINATION, ALLOW_CYCLE, EXACTLY_ONCE = 1, 2, 4, 8, 16
"""Bits of a router."""

LOCK_NAME = ".topics.lock"
WAL_BYTES = 64 << 20
"""Bytes that the server preallocates for each log file."""
