"""Decoders against bytes that no writer of ours made.

Every input ends in a typed `FormatError`, or in values that agree with each other whichever way
they are taken: never in another exception, a hang, or memory out of proportion. Random damage dies
at a checksum, so most inputs here are forged: changed first, then given the right checksums.

`inputs.py` says which variables choose how many inputs are tried, and which.
"""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from xxhash import xxh3_64_intdigest

from stratalog.errors import CorruptionError, FormatError, TooLargeError
from stratalog.format.arrow import TYPES, schema, to_arrow
from stratalog.format.batch import Batch
from stratalog.format.claim import ClaimFile, decode_claim, encode_claim
from stratalog.format.codec import CODECS, PREFIX, compress, decompress
from stratalog.format.columns import Columns, encode_columns
from stratalog.format.control import TopicBody, decode_reserve, decode_topic, encode_topic
from stratalog.format.ends import End, Ends, decode_ends, encode_ends
from stratalog.format.frame import (
    BODY_BYTES_MAX,
    CODEC_MASK,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    FrameHeader,
    FrameType,
    body_checksum,
    check_body,
    decode_header,
    encode_header,
)
from stratalog.format.groups import Description, decode_group, encode_group
from stratalog.format.runs import as_headers, verify_run
from stratalog.format.singles import merge_singles
from stratalog.format.store import StoreFile, decode_store, encode_store
from stratalog.model import Lease, Record
from stratalog.state.group_state import GroupState
from tests.fuzz.inputs import NOW, Fuzz, Outcome, anything, mutate, some_number

ALL = schema(list(TYPES))


# --- making inputs ---------------------------------------------------------------------------


def _blob(rng: Random) -> bytes:
    return rng.randbytes(rng.choice((0, 1, 3, 8, 20)))


def _text(rng: Random) -> bytes:
    return rng.choice((b"", b"a", b"tag-7", "ü✓".encode(), b"long text " * 3))


def _columns(rng: Random) -> Columns:
    """Valid columns: few records, any of the optional columns."""
    count = rng.choice((1, 1, 2, 3, 8, 9, 20, 40))
    each = range(count)

    def maybe(make: Callable[[], Any]) -> Any:
        return [make() for _ in each] if rng.random() < 0.4 else None

    values: list[bytes | None] = [_blob(rng) for _ in each]
    if rng.random() < 0.3:
        values[rng.randrange(count)] = None
    if rng.random() < 0.3:
        values = [b"the same text again and again"] * count
    return Columns(
        values,
        keys=maybe(lambda: rng.choice((None, _blob(rng)))),
        headers=maybe(lambda: [(_text(rng), _blob(rng)) for _ in range(rng.randrange(3))]),
        tags=maybe(lambda: rng.choice((None, _text(rng)))),
        nodes=maybe(lambda: rng.choice((None, _text(rng)))),
        timestamps=sorted(maybe(lambda: NOW + rng.randrange(1000)) or []) or None,
        priorities=maybe(lambda: rng.randrange(256)),
        expires_at=maybe(lambda: rng.choice((0, NOW))),
        not_before=maybe(lambda: rng.choice((0, NOW))),
        operations=maybe(lambda: rng.randrange(2)),
        event_times=maybe(lambda: rng.choice((0, NOW - rng.randrange(1000)))),
    )


def _frame(rng: Random) -> tuple[dict[str, int], bytes]:
    """A valid frame: the fields of its header, and its body."""
    columns = _columns(rng)
    flags, body = encode_columns(columns)
    times = columns.timestamps or [NOW]
    fields = {
        "type": FrameType.RECORDS,
        "flags": flags,
        "body_length": len(body),
        "count": len(columns.values),
        "topic_id": rng.randrange(1 << 64),
        "base_offset": rng.choice((0, 5, 1 << 40)),
        "base_timestamp": times[0],
        "max_timestamp": times[-1],
        "body_checksum": body_checksum(body),
        "unsynced": rng.randrange(3),
    }
    return fields, body


def _seal(fields: dict[str, int], body: bytes, seed: int) -> bytes:
    """Header and body with everything right that is computed from the rest."""
    fields = fields | {"body_length": len(body), "body_checksum": body_checksum(body)}
    return encode_header(**fields, seed=seed) + body


def _forge_fields(rng: Random, fields: dict[str, int]) -> dict[str, int]:
    kind = rng.randrange(7)
    if kind <= 1:
        return fields | {"flags": fields["flags"] ^ 1 << rng.randrange(3, 15)}
    if kind == 2:
        near = fields["count"] + rng.choice((-1, 1))
        return fields | {"count": rng.choice((near, some_number(rng))) & 0xFFFFFFFF}
    if kind == 3:
        return fields | {"base_offset": some_number(rng)}
    if kind == 4:
        name = rng.choice(("base_timestamp", "max_timestamp"))
        return fields | {name: some_number(rng) - (1 << 63)}
    if kind == 5:
        time = some_number(rng) - (1 << 63)
        moved = time + fields["max_timestamp"] - fields["base_timestamp"]
        return fields | {"base_timestamp": time, "max_timestamp": min(moved, (1 << 63) - 1)}
    return fields | {"type": rng.choice(list(FrameType))}


def _forge_compressed(rng: Random, body: bytes) -> tuple[int, bytes]:
    """Codec and stored body: compressed for real, or wrong in one of many ways."""
    codec = rng.randrange(1, 8) if rng.random() < 0.1 else rng.randrange(1, 4)
    stored = compress(body, min(codec, 3)) or body
    if rng.random() < 0.5 and len(stored) >= PREFIX.size:
        raw_length, stored_length = PREFIX.unpack_from(stored)
        raw_length = rng.choice((raw_length, raw_length + rng.choice((-8, 8)), some_number(rng)))
        if rng.random() < 0.3:
            stored_length = rng.choice((stored_length + rng.choice((-1, 1)), some_number(rng)))
        prefix = PREFIX.pack(raw_length & 0xFFFFFFFF, stored_length & 0xFFFFFFFF)
        stored = prefix + stored[PREFIX.size :]
    if rng.random() < 0.4:
        stored = mutate(rng, stored)
    return codec, stored


# --- judging outcomes ------------------------------------------------------------------------


def _or_none(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except CorruptionError:
        return None


def _examine(rng: Random, header: FrameHeader, data: bytes, start: int) -> Outcome:
    """Take a frame's records in every way there is, and compare."""
    check_body(header, data, start)
    batch = Batch.parse(header, data, start)
    values = batch.values()
    records: list[Record] | None = _or_none(batch.records)
    arrow = _or_none(lambda: to_arrow(batch, ALL, 0, batch.count))
    to_arrow(batch, schema(["offset", "timestamp", "key", "value"]), 0, batch.count).validate(
        full=True
    )
    assert len(values) == header.count
    assert (records is None) == (arrow is None), "Arrow and Python differ about what is text"
    if records is None or arrow is None:
        return "not text"
    assert [record.value for record in records] == values
    _check_order(header, records)
    arrow.validate(full=True)
    _check_same(records, arrow)
    first = rng.randrange(batch.count)
    end = rng.randrange(first, batch.count) + 1
    assert batch.records(first, end) == records[first:end]
    _check_same(records[first:end], to_arrow(batch, ALL, first, end))
    _check_again(records)
    return "good"


def _check_order(header: FrameHeader, records: list[Record]) -> None:
    offsets = [record.offset for record in records]
    times = [record.timestamp for record in records]
    assert offsets[0] == header.base_offset
    assert all(a < b for a, b in pairwise(offsets))
    assert offsets[-1] < 1 << 63
    assert (times[0], times[-1]) == (header.base_timestamp, header.max_timestamp)
    assert times == sorted(times)


def _check_same(records: list[Record], arrow: pa.RecordBatch) -> None:
    for name in TYPES:
        column = arrow.column(name)
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())
        items = column.to_pylist()
        if name == "headers":
            items = [{pair["key"]: pair["value"] for pair in pairs or []} for pairs in items]
        elif name in ("priority", "expires_at", "not_before", "operation"):
            items = [item or 0 for item in items]
        assert items == [getattr(record, name) for record in records], name


def _check_again(records: list[Record]) -> None:
    """A value that was read can be written, and reads the same."""
    flags, body = encode_columns(
        Columns(
            [r.value for r in records],
            keys=[r.key for r in records],
            headers=[[(k.encode(), v) for k, v in r.headers.items()] for r in records],
            tags=[None if r.tag is None else r.tag.encode() for r in records],
            nodes=[None if r.node is None else r.node.encode() for r in records],
            priorities=[r.priority for r in records],
            expires_at=[r.expires_at for r in records],
            not_before=[r.not_before for r in records],
            operations=[r.operation for r in records],
            event_times=[r.given_time for r in records],
        )
    )
    header = FrameHeader(FrameType.RECORDS, flags, len(body), len(records), 1, 0, 0, 0, 0, 0)
    again = Batch.parse(header, body).records()
    for name in (set(TYPES) | {"given_time"}) - {"offset", "timestamp", "event_time"}:
        assert [getattr(r, name) for r in again] == [getattr(r, name) for r in records]


# --- the tests -------------------------------------------------------------------------------


def test_random_bytes_decode_to_nothing(fuzz: Fuzz) -> None:
    """With and without a magic in front, through every decoder."""

    def check(rng: Random) -> Outcome:
        data = rng.randbytes(rng.choice((0, 1, 7, 8, 16, 48, 64, 100, 500)))
        kind = rng.randrange(6)
        if kind == 0:
            decode_header(rng.choice((b"", MAGIC, MAGIC + b"\1\1")) + data, seed=rng.randrange(9))
        elif kind == 1:
            decode_store(rng.choice((b"", b"STRALOG\0", b"STRALOG\0\1\0\0\0\0\0\0\0")) + data)
        elif kind == 2:
            decode_claim(rng.choice((b"", b"STRACLAM", b"STRACLAM\1\0\0\0\0\0\0\0")) + data)
        elif kind == 3:
            decode_topic(PREFIX.pack(len(data), 0) + data if rng.random() < 0.7 else data)
        elif kind == 4:
            raw_length = rng.choice((8, 64, 1 << 20, 1 << 30, 1 << 31))
            decompress(PREFIX.pack(raw_length, len(data)) + data, rng.randrange(1, 8))
        else:
            assert len(data) == 8 or decode_reserve(data) is None
            raise CorruptionError("a reservation is any 8 bytes")
        raise AssertionError(f"decoded {data!r}")

    assert fuzz.run(0.1, check)["CorruptionError"]


def test_a_damaged_frame_is_always_noticed(fuzz: Fuzz) -> None:
    """Flipped bits and lost bytes, anywhere in header and body, with no checksum put right."""

    def check(rng: Random) -> Outcome:
        fields, body = _frame(rng)
        seed = rng.randrange(1 << 40)
        frame = _seal(fields, body, seed)
        damaged = bytearray(frame)
        if rng.random() < 0.7:
            for _ in range(rng.choice((1, 1, 2, 8, 64))):
                damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        elif rng.random() < 0.7:
            del damaged[rng.randrange(len(damaged)) :]
        else:  # a torn write: a sector that never came
            at = rng.randrange(len(damaged))
            damaged[at : at + 512] = bytes(len(damaged[at : at + 512]))
        if damaged == frame:
            return "unchanged"
        header = decode_header(bytes(damaged), seed=seed)
        check_body(header, bytes(damaged), HEADER_BYTES)
        raise AssertionError(f"accepted {damaged!r}, which was {frame!r}")

    outcomes = fuzz.run(0.2, check)
    assert outcomes["CorruptionError"] > 10 * outcomes["unchanged"]


def test_a_forged_header_decodes_to_what_it_says_or_not_at_all(fuzz: Fuzz) -> None:
    """Any numbers in any field, under a right checksum."""

    def check(rng: Random) -> Outcome:
        fields, _ = _frame(rng)
        numbers = list(fields.values())
        names = list(fields)
        values: list[Any] = [MAGIC, 1, *numbers[:-1], 0, numbers[-1]]
        sizes = [8, 8, 16, 32, 32, 64, 64, 63, 63, 64, 32, 32]
        for _ in range(rng.choice((0, 1, 1, 2, 3))):
            at = rng.randrange(12)
            values[at + 1] = 0 if at == 10 else some_number(rng) & (1 << sizes[at]) - 1
        zeroed = HEADER.pack(*values)
        checksum = xxh3_64_intdigest(zeroed, 7) & 0xFFFFFFFF
        header = decode_header(zeroed[:56] + struct.pack("<I", checksum) + zeroed[60:], seed=7)
        assert list(header) == [*values[2:-2], values[-1]]
        assert list(header._fields) == names
        assert 1 <= header.type <= max(FrameType)
        assert header.body_length <= BODY_BYTES_MAX
        assert header.body_length % 8 == 0
        return "good"

    outcomes = fuzz.run(0.1, check)
    assert min(outcomes["good"], outcomes["CorruptionError"]) > outcomes.total() / 20
    assert outcomes["UnsupportedVersionError"]


def _run_of_frames(rng: Random) -> tuple[bytes, list[int], list[int]]:
    """Frames whose offsets follow each other: the bytes, where each starts, how long it is.

    As a rule all of them are of one record each, or all of values alone, and one of them is forged.
    """
    kind = rng.choice(("single", "single", "plain", "any"))
    forged = rng.choice((-1, 0, 1, 2))
    data, starts, lengths, base, time = b"", [], [], rng.choice((0, 5, 1 << 40)), NOW
    for number in range(rng.choice((1, 2, 3, 5))):
        columns = _columns(rng)
        if kind == "plain":
            columns = Columns([value or b"" for value in columns.values])
        elif kind == "single":
            columns = Columns(*[columns.values[:1]], **{
                name: items and items[:1] for name in Columns.__slots__
                if name != "values"
                for items in [getattr(columns, name)]
            })  # fmt: skip
        flags, body = encode_columns(columns)
        times = columns.timestamps or [time]
        time = max(time, times[-1])
        fields = {
            "type": FrameType.RECORDS, "flags": flags, "count": len(columns.values), "topic_id": 7,
            "base_offset": base, "base_timestamp": times[0], "max_timestamp": times[-1],
            "unsynced": 0,
        }  # fmt: skip
        base += len(columns.values)
        if number == forged:
            if rng.random() < 0.3:
                fields = _forge_fields(rng, fields)
            for _ in range(rng.choice((1, 1, 2))):
                body = mutate(rng, body)
        frame = _seal(fields, body, 9)
        data += bytes(rng.choice((0, 0, 8, 200)))
        starts.append(len(data))
        lengths.append(len(frame))
        data += frame
    if rng.random() < 0.05:  # and one that no checksum was put right in
        damaged = bytearray(data)
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        data = bytes(damaged)
    return data, starts, lengths


def _apart(data: bytes, starts: list[int]) -> list[Record]:
    """The records of frames, each looked at by itself."""
    records: list[Record] = []
    for start in starts:
        header = decode_header(data, start, seed=9)
        if header.type != FrameType.RECORDS:
            raise CorruptionError("not of records")
        check_body(header, data, start + HEADER_BYTES)
        records += Batch.parse(header, data, start + HEADER_BYTES).records()
    return records


def test_frames_at_once_are_what_they_are_one_by_one(fuzz: Fuzz) -> None:
    """Or are left to be looked at one by one: then that tells what is wrong, if anything is."""

    def check(rng: Random) -> Outcome:
        data, starts, lengths = _run_of_frames(rng)
        headers = verify_run(data, np.array(starts), np.array(lengths), 9)
        if len(headers) < len(starts):
            _apart(data, starts[: len(headers)])
            _apart(data, starts[len(headers) : len(headers) + 1])
            raise AssertionError("nothing is wrong with it")
        assert as_headers(headers) == [decode_header(data, start, seed=9) for start in starts]
        ends = headers["base_offset"] + headers["count"]
        if (headers["base_offset"][1:] != ends[:-1]).any():
            return "offsets do not follow"  # which a reader looks at before
        bodies = np.array(starts) + HEADER_BYTES
        outcome = "apart"
        for merge in (Batch.merge, merge_singles):
            merged = merge(headers, data, bodies)
            if merged is not None:
                outcome = "merged"
                apart = _or_none(lambda: _apart(data, starts))
                assert _or_none(merged.records) == apart
        return outcome

    outcomes = fuzz.run(0.3, check)
    assert outcomes["merged"] > outcomes.total() / 4
    assert min(outcomes["apart"], outcomes["CorruptionError"]) > outcomes.total() / 50


def _forged_batch(rng: Random) -> Outcome:
    fields, body = _frame(rng)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 4))):
        body = mutate(rng, body)
    if rng.random() < 0.4:
        fields = _forge_fields(rng, fields)
    if rng.random() < 0.2:
        codec, body = _forge_compressed(rng, body)
        fields = fields | {"flags": fields["flags"] & ~CODEC_MASK | codec}
    frame = _seal(fields, body, 9)
    start = rng.choice((0, 8, 72))
    data = bytes(start) + frame + b"STRA" * rng.randrange(3)
    header = decode_header(data, start, seed=9)
    return _examine(rng, header, data, start + HEADER_BYTES)


def test_a_forged_batch_is_consistent_or_refused(fuzz: Fuzz) -> None:
    """Sections moved, cut, stretched and overwritten, flags and counts changed, codecs and all."""
    outcomes = fuzz.run(0.42, _forged_batch)
    assert min(outcomes["good"], outcomes["CorruptionError"]) > outcomes.total() / 20
    assert outcomes["not text"] > outcomes.total() / 1000


def _forged_compression(rng: Random) -> Outcome:
    body = b"".join(rng.choice((b"abcdefgh", bytes(8), rng.randbytes(8))) for _ in range(99))
    codec, stored = _forge_compressed(rng, body)
    plain = decompress(stored, codec)
    raw_length, stored_length = PREFIX.unpack_from(stored)
    assert len(plain) == raw_length
    assert raw_length <= stored_length << 15
    if stored[PREFIX.size :] == (compress(body, codec) or b"")[PREFIX.size :]:
        assert plain == body
    return "good"


def test_a_forged_compressed_body_is_as_long_as_it_says_or_refused(fuzz: Fuzz) -> None:
    """Lengths that lie, data that ends early or late, and codecs there are not."""
    outcomes = fuzz.run(0.05, _forged_compression)
    assert min(outcomes["good"], outcomes["CorruptionError"]) > outcomes.total() / 20


def test_a_forged_topic_is_a_topic_or_refused(fuzz: Fuzz) -> None:
    """MessagePack with wrong types, wrong lengths, deep nesting and broken bytes."""

    def check(rng: Random) -> Outcome:
        fields: dict[str, Any] = {"name": "orders", "kind": "topic", "created_at": NOW}
        fields["options"] = {"ttl": 1.5, "compression": "zstd"}
        if rng.random() < 0.5:
            fields[rng.choice([*fields, "more"])] = anything(rng)
        data = msgspec.msgpack.encode(fields)
        for _ in range(rng.choice((0, 1, 1, 2, 4))):
            data = mutate(rng, data, word=1)
        if rng.random() < 0.1:
            at = rng.randrange(len(data) + 1)
            data = data[:at] + rng.choice((b"\x91", b"\x81\xa1a", b"\xdd\xff\xff\xff\xff")) * 3000
        length = len(data) if rng.random() < 0.9 else some_number(rng) & 0xFFFFFFFF
        topic = decode_topic(PREFIX.pack(length, 0) + data + bytes(-len(data) % 8))
        assert isinstance(topic, TopicBody)
        assert isinstance(topic.name, str)
        assert isinstance(topic.created_at, int)
        assert all(isinstance(name, str) for name in topic.options)
        again = decode_topic(encode_topic(topic))
        assert repr(again) == repr(topic)  # not ==: a nan is not itself
        return "good"

    outcomes = fuzz.run(0.05, check)
    assert min(outcomes["good"], outcomes["CorruptionError"]) > outcomes.total() / 20


def test_a_forged_store_file_decodes_to_what_it_says_or_not_at_all(fuzz: Fuzz) -> None:
    """Any version, any length, under a right checksum."""

    def check(rng: Random) -> Outcome:
        store = StoreFile(rng.randbytes(16), some_number(rng) - (1 << 63), rng.choice((1, 2)))
        data = encode_store(store)[:40]
        if rng.random() < 0.5:
            data = mutate(rng, data, word=1)
        data += struct.pack("<Q", xxh3_64_intdigest(data[:40]))
        if rng.random() < 0.2:
            data += rng.randbytes(rng.randrange(9))
        found = decode_store(data)
        assert encode_store(found) == data
        return "good"

    outcomes = fuzz.run(0.03, check)
    assert min(outcomes["good"], outcomes["CorruptionError"]) > outcomes.total() / 20


def test_a_forged_claim_decodes_to_what_it_says_or_not_at_all(fuzz: Fuzz) -> None:
    """Any version, any length, under a right checksum."""

    def check(rng: Random) -> Outcome:
        claim = ClaimFile(rng.randbytes(16), rng.randbytes(8), rng.getrandbits(64))
        data = encode_claim(claim)[:48]
        if rng.random() < 0.5:
            data = mutate(rng, data, word=1)
        data += struct.pack("<Q", xxh3_64_intdigest(data[:48]))
        if rng.random() < 0.2:
            data += rng.randbytes(rng.randrange(9))
        found = decode_claim(data)
        assert encode_claim(found) == data
        return "good"

    outcomes = fuzz.run(0.03, check)
    assert min(outcomes["good"], outcomes["CorruptionError"]) > outcomes.total() / 20


def test_forged_ends_of_a_log_decode_to_what_they_say_or_not_at_all(fuzz: Fuzz) -> None:
    """Any version, any number of shards, under a right checksum."""

    def check(rng: Random) -> Outcome:
        shards = {}
        for shard in sorted(rng.sample(range(300), rng.randrange(5))):
            first = rng.randrange(1 << 40)
            shards[shard] = End(first, first + rng.randrange(1 << 20))
        data = encode_ends(Ends(rng.randbytes(16), shards))
        head, rest = data[:32], data[40:]
        if rng.random() < 0.5:
            changed = mutate(rng, head + rest, word=1)
            head, rest = changed[:32], changed[32:]
        data = head + struct.pack("<Q", xxh3_64_intdigest(head + rest)) + rest
        found = decode_ends(data)
        assert encode_ends(found) == data
        return "good"

    outcomes = fuzz.run(0.03, check)
    assert min(outcomes["good"], outcomes["CorruptionError"]) > outcomes.total() / 20


def test_no_forged_input_takes_memory_out_of_proportion(fuzz: Fuzz) -> None:
    """Peaks of Python, NumPy and Arrow stay within what the codecs' densest data may take."""
    pool = pa.default_memory_pool()
    list(map(_forged_batch_or_error, map(Random, range(20))))  # caches fill up outside the count

    def check(rng: Random) -> Outcome:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        make = rng.choice((_forged_batch, _forged_compression))
        try:
            return make(rng)
        finally:
            peak = tracemalloc.get_traced_memory()[1] - before
            assert peak < 1 << 26, f"{peak} bytes"

    tracemalloc.start()
    try:
        fuzz.run(0.05, check)
    finally:
        tracemalloc.stop()
    assert (pool.max_memory() or 0) < 1 << 28


def _forged_batch_or_error(rng: Random) -> Outcome:
    try:
        return _forged_batch(rng)
    except (FormatError, TooLargeError) as error:
        return type(error).__name__


def test_every_codec_is_reached() -> None:
    """The corpus has bodies that each codec takes, so that the parser after it is reached."""
    seen = set()
    for number in range(300):
        _, body = _frame(Random(number))
        seen |= {codec for codec in CODECS.values() if compress(body, codec) is not None}
    assert seen == {1, 2, 3}


# --- consumer groups ---------------------------------------------------------------------------


def _group(rng: Random) -> bytes:
    """A valid body of a group frame."""
    consumers = ["", "a", "größe"]
    leases = {
        rng.randrange(1 << 20): Lease(
            NOW + rng.randrange(1000),
            rng.randrange(9),
            rng.choice(consumers),
            NOW,
            rng.randrange(1 << 40),
            rng.randrange(256),
        )
        for _ in range(rng.choice((0, 1, 2, 9)))
    }
    consumed = [rng.randrange(1 << rng.choice((8, 20, 62))) for _ in range(rng.choice((0, 1, 30)))]
    description = Description("g", "queue", NOW, {"lease": 1.5}) if rng.random() < 0.3 else None
    return encode_group(
        rng.randrange(9), rng.randrange(1 << 40), rng.randrange(1 << 40), leases, consumed,
        description=description, seek=rng.choice((None, 0, 77)), is_dropped=rng.random() < 0.1,
    )  # fmt: skip


def test_bodies_of_group_frames(fuzz: Fuzz) -> None:
    """A decoded value is encoded to something that decodes to the same."""

    def check(rng: Random) -> Outcome:
        body = _group(rng)
        for _ in range(rng.choice((0, 1, 1, 2))):
            body = mutate(rng, body)
        found = decode_group(body)
        group, deliveries, cursor, leases, consumed, text = found
        again = encode_group(
            group, deliveries, cursor, leases, consumed, description=text.description,
            seek=text.seek, is_dropped=text.is_dropped,
        )  # fmt: skip
        same = decode_group(again)
        assert same[:5] == found[:5]
        assert str(same.text.description) == str(text.description)  # as text: NaN is not NaN
        state = GroupState(group, is_queue=False)
        state.apply(1, found)
        assert not state.pending.keys() & set(consumed if len(consumed) < 1000 else ())
        return "decoded"

    outcomes = fuzz.run(0.1, check)
    assert outcomes["decoded"] > outcomes.total() // 20
    assert outcomes["CorruptionError"] > outcomes.total() // 20
