"""The decoders of segments, snapshots and control bodies against bytes no writer of ours made.

As in `test_decoders.py`, and with the same variables: a typed `FormatError`, or a value that is
written back to the same bytes.
"""

from __future__ import annotations

import struct
import tracemalloc
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest
from pyroaring import BitMap64
from xxhash import xxh3_64_intdigest

from stratalog.errors import FormatError
from stratalog.format.ceilings import (
    Ceiling,
    decode_ceilings,
    encode_ceilings_header,
    encode_slot,
)
from stratalog.format.control import (
    PREFIX,
    REASONS,
    decode_checkpoint,
    decode_delete,
    decode_floor,
    decode_offsets,
    decode_reserve,
    decode_tier,
    decode_topic,
    encode_checkpoint,
    encode_floor,
    encode_tier,
)
from stratalog.format.frame import FrameType
from stratalog.format.names import cold_directory, cold_name, parse_cold_name
from stratalog.format.routes import (
    FORWARD,
    RouteBody,
    decode_forward,
    decode_route,
    encode_forward,
    encode_route,
)
from stratalog.format.schedules import (
    DUE,
    ScheduleBody,
    decode_due,
    decode_schedule,
    encode_due,
    encode_schedule,
)
from stratalog.format.segment import (
    FOOTER_BYTES,
    FOOTER_MAGIC,
    HEADER_BYTES,
    HEADER_MAGIC,
    INDEX_BYTES,
    INDEX_DTYPE,
    SUMMARY,
    SegmentFooter,
    SegmentHeader,
    Summary,
    decode_footer,
    decode_index,
    decode_segment_header,
    decode_summaries,
    encode_footer,
    encode_index,
    encode_segment_header,
    encode_summaries,
    place_index,
)
from stratalog.format.snapshot import (
    HEADER_BYTES as SNAPSHOT_HEADER_BYTES,
)
from stratalog.format.snapshot import (
    MAGIC,
    SECTION,
    CatalogState,
    LogState,
    RouteSnapshot,
    RoutesState,
    ScheduleSnapshot,
    SchedulesState,
    Snapshot,
    TopicState,
    decode_snapshot,
    encode_snapshot,
)
from stratalog.segments.segment import scan_index
from stratalog.state.routes import Routes
from stratalog.state.schedules import Schedules
from tests.fuzz.inputs import NOW, Check, Fuzz, Outcome, anything, mutate, some_number

OFFSET_MAX = (1 << 63) - 1


# --- making inputs ---------------------------------------------------------------------------


def _digest(data: bytes) -> bytes:
    return struct.pack("<Q", xxh3_64_intdigest(data))


def _offsets(rng: Random) -> BitMap64:
    """Any kind of container, in any of the places where one may be."""
    offsets = BitMap64()
    for _ in range(rng.randrange(4)):
        base = rng.choice((0, 5, 1 << 16, 1 << 33, OFFSET_MAX - (1 << 17)))
        kind = rng.randrange(3)
        if kind == 0:
            offsets |= BitMap64(base + rng.randrange(100_000) for _ in range(rng.randrange(9)))
        elif kind == 1:
            offsets.add_range(base, base + rng.randrange(1, 100_000))
        else:
            offsets |= BitMap64(range(base, base + 12_000, 2))
    if rng.random() < 0.5:
        offsets.run_optimize()
    return offsets


def _summary(rng: Random, first: int) -> Summary:
    end = first + rng.randrange(100)
    state = rng.randrange(3)
    return Summary(first, end, end - first, 4096, NOW, NOW + 9, rng.choice((0, NOW)), NOW, state)


def _summaries(rng: Random) -> list[Summary]:
    summaries: list[Summary] = []
    for _ in range(rng.randrange(4)):
        end = summaries[-1].end_offset if summaries else 0
        summaries.append(_summary(rng, end + rng.choice((0, 0, 7))))
    return summaries


def _segment(rng: Random) -> tuple[SegmentFooter, bytes]:
    """A footer and its index."""
    entries = []
    base, position, time = 100, HEADER_BYTES, NOW
    for _ in range(rng.randrange(6)):
        count, length = rng.randrange(1, 50), 64 + 8 * rng.randrange(50)
        entries.append((base, position, length, count, time, time + 5))
        base += count + rng.choice((0, 0, 3))
        position += length
        time += rng.choice((5, 6, 1000))
    data = encode_index(np.array(entries, INDEX_DTYPE))
    footer = SegmentFooter(
        rng.randrange(1 << 64), 100, base, sum(entry[3] for entry in entries),
        entries[0][4] if entries else 0, entries[-1][5] if entries else 0, 0, NOW, position,
        len(entries), xxh3_64_intdigest(data),
    )  # fmt: skip
    return footer, data


def _topic(rng: Random, id: int) -> TopicState:
    return TopicState(
        id, rng.choice(("a", "größe")), "topic", NOW, 1, 2, {"ttl": 1.5}, 50, NOW, 5, 3, "evicted",
        0, 50, BitMap64([7]).serialize(), BitMap64().serialize(), encode_summaries(_summaries(rng)),
    )  # fmt: skip


def _snapshot(rng: Random) -> Snapshot:
    topics = [_topic(rng, id) for id in range(rng.randrange(4))]
    name = cold_name(cold_directory(rng.randbytes(16), rng.randbytes(8)), 2, 40, 1 << 60)
    objects = {2: {40: name}} if rng.random() < 0.5 else {}
    catalog = CatalogState(9, {"gone": 1}, "/cold", topics, [4, 5], objects=objects)
    routes = [RouteSnapshot(0, 5, 3, 1, _route(rng)) for _ in range(rng.randrange(3))]
    schedules = [
        ScheduleSnapshot(1, 1, NOW + 5, NOW, 3, _schedule(rng)) for _ in range(rng.randrange(3))
    ]
    return Snapshot(
        rng.randrange(1 << 64), NOW, rng.randbytes(16), LogState({0: 4096}), catalog,
        routes=RoutesState(9, routes), schedules=SchedulesState(9, schedules),
    )  # fmt: skip


def _changed(rng: Random, data: bytes, word: int = 1) -> bytes:
    for _ in range(rng.choice((0, 1, 1, 1, 2, 4))):
        data = mutate(rng, data, word)
    return data


def _cut_or_flipped(rng: Random, data: bytes) -> bytes:
    """Damage as a disk does it, with no checksum put right."""
    if rng.random() < 0.3:
        return data[: rng.randrange(len(data))]
    damaged = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def _wrapped(rng: Random, data: bytes) -> bytes:
    """A control body; now and then its length lies."""
    length = len(data) if rng.random() < 0.9 else some_number(rng) & 0xFFFFFFFF
    return PREFIX.pack(length, 0) + data + bytes(-len(data) % 8)


# --- segments --------------------------------------------------------------------------------


def _forged_segment_header(rng: Random) -> Outcome:
    header = SegmentHeader(rng.randrange(1 << 64), some_number(rng), some_number(rng) - (1 << 63))
    data = _changed(rng, encode_segment_header(header)[:-8])
    data += _digest(data[: HEADER_BYTES - 8])
    assert encode_segment_header(decode_segment_header(data)) == data[:HEADER_BYTES]
    return "good"


def _forged_footer(rng: Random) -> Outcome:
    footer, index = _segment(rng)
    data = encode_footer(footer)[:-16]
    size = footer.index_position + len(index) + FOOTER_BYTES
    kind = rng.randrange(3)
    if kind == 0:
        data = _changed(rng, data)
    elif kind == 1:
        changed = footer._replace(**{rng.choice(footer._fields[:9]): some_number(rng) >> 1})
        data = encode_footer(changed)[:-16]
        if rng.random() < 0.7:  # the file is as long as it says
            size = changed.index_position + len(index) + FOOTER_BYTES
    data += _digest(data) + FOOTER_MAGIC
    found = decode_footer(data, size)
    assert encode_footer(found) == data[-FOOTER_BYTES:]
    assert found.first_offset <= found.end_offset <= OFFSET_MAX
    assert HEADER_BYTES <= found.index_position <= size
    assert found.index_count * INDEX_BYTES <= size
    return "good"


def _forged_index(rng: Random) -> Outcome:
    footer, data = _segment(rng)
    data = _changed(rng, data, rng.choice((1, 8, INDEX_BYTES)))
    footer = footer._replace(index_checksum=xxh3_64_intdigest(data))
    if rng.random() < 0.8:
        footer = footer._replace(index_count=len(data) // INDEX_BYTES)
    if rng.random() < 0.2:
        name = rng.choice(("first_offset", "end_offset", "records", "index_position"))
        footer = footer._replace(**{name: some_number(rng)})
    index = decode_index(data, footer)
    if encode_index(index) != data:  # of a staged segment, which was given its place since
        staged = np.frombuffer(data, INDEX_DTYPE)
        assert (footer.first_offset > 0, int(staged["base_offset"][0])) == (True, 0)
        assert (index == place_index(staged, footer.first_offset, footer.min_timestamp)).all()
    end, offset, time, records = HEADER_BYTES, footer.first_offset, -(1 << 63), 0
    for base, position, length, count, low, high in index.tolist():
        assert position == end
        assert base >= offset
        assert time <= low <= high
        end, offset, time, records = position + length, base + count, high, records + count
    assert (end, records) == (footer.index_position, footer.records)
    assert offset <= max(footer.end_offset, footer.first_offset) or not len(index)
    return "good"


def _forged_summaries(rng: Random) -> Outcome:
    data = encode_summaries(_summaries(rng))
    data = _changed(rng, data, rng.choice((1, 8, 8, SUMMARY.size)))
    summaries = decode_summaries(data)
    assert encode_summaries(summaries) == data
    end = 0
    for summary in summaries:
        assert end <= summary.first_offset <= summary.end_offset <= OFFSET_MAX
        assert summary.state in (0, 1, 2)
        end = summary.end_offset
    return "good"


# --- snapshots -------------------------------------------------------------------------------


def _section(rng: Random, type: int, data: bytes) -> bytes:
    numbers = [type, 0, len(data), len(data)]
    if rng.random() < 0.15:
        at = rng.randrange(4)
        numbers[at] = some_number(rng) & (0xFFFFFFFF if at < 2 else (1 << 64) - 1)
    head = SECTION.pack(*numbers, 0)[:-8]
    return head + _digest(head + data) + data


def _forged_catalog(rng: Random, catalog: CatalogState) -> bytes:
    fields = msgspec.to_builtins(catalog, builtin_types=(bytes,))
    if rng.random() < 0.3:
        fields[rng.choice([*fields, "more"])] = anything(rng)
    if rng.random() < 0.3 and catalog.topics:
        names = TopicState.__struct_fields__
        values: list[Any] = [getattr(catalog.topics[0], name) for name in names]
        values[rng.randrange(len(values))] = anything(rng)
        fields["topics"] = [values + [anything(rng)] * rng.randrange(2)]
    return msgspec.msgpack.encode(fields)


def _forged_snapshot(rng: Random) -> Outcome:
    snapshot = _snapshot(rng)
    log = msgspec.msgpack.encode(snapshot.log)
    catalog = _forged_catalog(rng, snapshot.catalog)
    if rng.random() < 0.4:
        log, catalog = _changed(rng, log), _changed(rng, catalog)
    if rng.random() < 0.1:
        at = rng.randrange(len(catalog) + 1)
        deep = rng.choice((b"\x91", b"\x81\xa1a", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff"))
        catalog = catalog[:at] + deep * 3000
    routes = msgspec.msgpack.encode(snapshot.routes)
    if rng.random() < 0.1:
        routes = _changed(rng, routes)
    sections = [_section(rng, 1, log), _section(rng, 2, catalog)]
    sections.append(_section(rng, 6, routes))
    schedules = msgspec.msgpack.encode(snapshot.schedules)
    if rng.random() < 0.1:
        schedules = _changed(rng, schedules)
    sections.append(_section(rng, 8, schedules))
    if rng.random() < 0.1:
        sections = rng.choices(sections, k=rng.randrange(4))
    body = b"".join(sections)
    head = encode_snapshot(snapshot)[: SNAPSHOT_HEADER_BYTES - 16]
    head += struct.pack("<Q", SNAPSHOT_HEADER_BYTES + len(body))
    if rng.random() < 0.2:
        head = _changed(rng, head)
    found = decode_snapshot(head + _digest(head) + body)
    again = decode_snapshot(encode_snapshot(found))
    assert repr(again) == repr(found)  # not ==: a nan is not itself
    for topic in found.catalog.topics:
        assert isinstance(topic.name, str)
        assert isinstance(topic.deleted, bytes)
    return "good"


# --- control bodies --------------------------------------------------------------------------


def _forged_offsets(rng: Random) -> Outcome:
    offsets = _offsets(rng)
    data = bytearray(offsets.serialize())
    for _ in range(rng.choice((0, 1, 1, 2))):
        # Headers of containers are at the front, and that is where it hurts.
        front = bytes(data[: 8 * rng.randrange(1, 12)])
        data[: len(front)] = mutate(rng, front, rng.choice((1, 2, 4)))
    found = decode_delete(_wrapped(rng, bytes(data)))
    assert found == decode_offsets(found.serialize())
    assert not found or 0 <= found.min() <= found.max() <= OFFSET_MAX
    assert len(found | offsets) == len(found) + len(offsets) - len(found & offsets)
    assert found.range_cardinality(0, 1 << 63) == len(found)
    some = BitMap64()
    some.add_range(0, 1 << 17)
    inside = (some & found).to_array()
    assert list(inside) == sorted(set(inside))
    return "good"


def _forged_tier(rng: Random) -> Outcome:
    summary = _summary(rng, rng.choice((0, 100, 1 << 40)))
    if rng.random() < 0.5:
        at = rng.randrange(9)
        numbers = list(summary)
        numbers[at] = some_number(rng) >> (0 if at in (0, 1, 2, 3, 8) else 1)
        summary = Summary._make(numbers)
    location = rng.choice(("", "/cold", "s3://größe"))
    if rng.random() < 0.5:
        directory = cold_directory(rng.randbytes(16), rng.randbytes(8))
        location += "\0" + cold_name(directory, 7, summary.first_offset, rng.getrandbits(64))
    data = _changed(rng, SUMMARY.pack(*summary) + location.encode())
    found, place, name = decode_tier(_wrapped(rng, data))
    assert not name or parse_cold_name(name) is not None
    assert SUMMARY.pack(*found) + place.encode() == data[: SUMMARY.size + len(place.encode())]
    assert encode_tier(found, place, name)[PREFIX.size :].startswith(data)
    return "good"


def _forged_numbers(rng: Random) -> Outcome:
    data = struct.pack("<QQ", some_number(rng), rng.choice((some_number(rng), rng.randrange(5))))
    if rng.random() < 0.2:
        data = mutate(rng, data, 1)
    if rng.random() < 0.5:
        assert encode_checkpoint(*decode_checkpoint(data)) == data
    else:
        evicted_below, reason = decode_floor(data)
        assert reason in REASONS
        assert encode_floor(evicted_below, reason) == data
    return "good"


def _route(rng: Random) -> RouteBody:
    return RouteBody(
        rng.randrange(1, 9), rng.randrange(1, 9), rng.randrange(1, 9), "a", "größe", NOW,
        rng.randrange(1 << 40), rng.choice((None, "eu-*")), rng.choice((None, b"", b"k")),
        rng.choice((None, "n")), rng.random() < 0.5, rng.random() < 0.2,
    )  # fmt: skip


def _forged_route(rng: Random) -> Outcome:
    """A route's definition and progress, and the state that any of that leads to."""
    routes = Routes()
    for _ in range(rng.randrange(1, 6)):
        number = rng.choice((some_number(rng), rng.randrange(4)))
        if rng.random() < 0.5:
            fields = msgspec.to_builtins(_route(rng), builtin_types=(bytes,))
            if rng.random() < 0.2:
                fields[rng.choice([*fields, "more"])] = anything(rng)
            body = _wrapped(rng, _changed(rng, msgspec.msgpack.encode(fields)))
            if rng.random() < 0.7:
                body = encode_route(_route(rng))
            route = decode_route(body)
            assert decode_route(encode_route(route)) == route
            routes.apply(FrameType.ROUTE, number, body)
        else:
            data = FORWARD.pack(rng.randrange(9), some_number(rng) >> 2, some_number(rng) >> 1)
            data = mutate(rng, data, 1) if rng.random() < 0.2 else data
            assert encode_forward(*decode_forward(data)) == data
            routes.apply(FrameType.FORWARD, number, data)
    state = routes.capture()
    again = Routes()
    again.restore(state)
    assert again.capture() == state
    return "good"


def _schedule(rng: Random) -> ScheduleBody:
    cron = rng.choice((None, "0 3 * * *", "nonsense"))
    return ScheduleBody(
        rng.randrange(1, 9), "nightly", "größe", NOW, NOW, NOW + rng.randrange(1 << 40),
        rng.choice((None, b"", b"value")), cron, 0 if cron else rng.randrange(1, 1 << 40),
        rng.choice(("UTC", "Mars/Base")), {"a": b"b"} if rng.random() < 0.5 else {},
        rng.randrange(256), rng.randrange(9), rng.random() < 0.5, rng.random() < 0.2,
    )  # fmt: skip


def _forged_schedule(rng: Random) -> Outcome:
    """A schedule's definition and progress, and the state that any of that leads to."""
    schedules = Schedules()
    for _ in range(rng.randrange(1, 6)):
        number = rng.choice((some_number(rng), rng.randrange(4)))
        if rng.random() < 0.5:
            fields = msgspec.to_builtins(_schedule(rng), builtin_types=(bytes,))
            if rng.random() < 0.2:
                fields[rng.choice([*fields, "more"])] = anything(rng)
            body = _wrapped(rng, _changed(rng, msgspec.msgpack.encode(fields)))
            if rng.random() < 0.7:
                body = encode_schedule(_schedule(rng))
            schedule = decode_schedule(body)
            assert decode_schedule(encode_schedule(schedule)) == schedule
            schedules.apply(FrameType.SCHEDULE, number, body)
        else:
            due = some_number(rng) >> 2
            data = DUE.pack(rng.randrange(9), due, due + rng.randrange(9), some_number(rng) >> 1)
            data = mutate(rng, data, 1) if rng.random() < 0.2 else data
            assert encode_due(*decode_due(data)) == data
            schedules.apply(FrameType.DUE, number, data)
    state = schedules.capture()
    again = Schedules()
    again.restore(state)
    assert again.capture() == state
    return "good"


def _forged_ceilings(rng: Random) -> Outcome:
    """Slots of any numbers, and bytes changed under checksums that are right or not."""
    slots = {
        rng.randrange(1, 9): Ceiling(*sorted((some_number(rng) >> 1, some_number(rng) >> 1))[::-1])
        for _ in range(rng.randrange(5))
    }
    identity, boot = rng.randbytes(16), rng.randbytes(16)
    head = encode_ceilings_header(identity, boot)
    data = b"".join([head, *(encode_slot(id, one) for id, one in slots.items())]) + bytes(64)
    if rng.random() < 0.6:
        data = mutate(rng, data, 1)
    if rng.random() < 0.3 and len(data) >= 64:
        data = data[:56] + xxh3_64_intdigest(data[:56]).to_bytes(8, "little") + data[64:]
    held = decode_ceilings(data)
    for id, one in held.ceilings.items():
        assert slots[id] == one, "a ceiling that was never written"
    assert held.damaged or len(held.ceilings) == len(slots) or len(data) < 64 + 32 * len(slots) + 64
    return "good"


# --- the tests -------------------------------------------------------------------------------

FORGED: dict[Check, float] = {
    _forged_segment_header: 0.05,
    _forged_footer: 0.1,
    _forged_index: 0.15,
    _forged_summaries: 0.1,
    _forged_snapshot: 0.2,
    _forged_offsets: 0.1,
    _forged_tier: 0.05,
    _forged_numbers: 0.05,
    _forged_ceilings: 0.05,
    _forged_route: 0.1,
    _forged_schedule: 0.1,
}


@pytest.mark.parametrize("check", FORGED, ids=lambda check: check.__name__.removeprefix("_forged_"))
def test_what_is_forged_is_consistent_or_refused(check: Check, fuzz: Fuzz) -> None:
    """Any bytes changed, any lengths and numbers, under checksums that are right."""
    outcomes = fuzz.run(FORGED[check], check)
    assert min(outcomes["good"], outcomes["CorruptionError"]) > outcomes.total() / 20


def test_random_bytes_decode_to_nothing_or_to_themselves(fuzz: Fuzz) -> None:
    """With and without a magic in the right place, through every decoder."""
    footer, _ = _segment(Random(1))
    decoders: list[Callable[[bytes], object]] = [
        decode_segment_header,
        lambda data: decode_segment_header(HEADER_MAGIC + data),
        lambda data: decode_footer(data, len(data)),
        lambda data: decode_footer(data + FOOTER_MAGIC, len(data) + 8),
        lambda data: decode_index(data, footer),
        decode_snapshot,
        lambda data: decode_snapshot(MAGIC + data),
        decode_topic,
        decode_route,
        decode_schedule,
        decode_delete,
        decode_tier,
    ]
    whatever: list[Callable[[bytes], object]] = [
        decode_offsets,
        decode_summaries,
        decode_checkpoint,
        decode_floor,
        decode_reserve,
        decode_forward,
        decode_due,
        lambda data: decode_delete(PREFIX.pack(len(data), 0) + data + bytes(-len(data) % 8)),
        lambda data: decode_tier(PREFIX.pack(len(data), 0) + data + bytes(-len(data) % 8)),
        lambda data: scan_index(lambda at, length: data[at : at + length], 1, len(data)),
    ]

    def check(rng: Random) -> Outcome:
        data = rng.randbytes(rng.choice((0, 1, 7, 8, 16, 40, 64, 72, 104, 500)))
        if rng.random() < 0.5:
            rng.choice(whatever)(data)  # some of these have no checksum of their own
            return "good"
        found = rng.choice(decoders)(data)
        raise AssertionError(f"decoded {data!r} to {found!r}")

    assert fuzz.run(0.1, check)["CorruptionError"]


def test_damage_is_always_noticed(fuzz: Fuzz) -> None:
    """Flipped bits and lost bytes, with no checksum put right."""

    def check(rng: Random) -> Outcome:
        kind = rng.randrange(4)
        footer, index = _segment(rng)
        if kind == 0:
            whole = encode_segment_header(SegmentHeader(7, 100, NOW))
            damaged = _cut_or_flipped(rng, whole)
            found: object = None if damaged == whole else decode_segment_header(damaged)
        elif kind == 1:
            whole = encode_footer(footer)
            damaged = _cut_or_flipped(rng, whole)
            size = footer.index_position + len(index) + FOOTER_BYTES
            found = None if damaged == whole else decode_footer(damaged, size)
        elif kind == 2:
            damaged = _cut_or_flipped(rng, index) if index else index
            found = None if damaged == index else decode_index(damaged, footer)
        else:
            whole = encode_snapshot(_snapshot(rng))
            damaged = _cut_or_flipped(rng, whole)
            found = None if damaged == whole else decode_snapshot(damaged)
        if found is None:
            return "unchanged"
        raise AssertionError(f"accepted {damaged!r}")

    outcomes = fuzz.run(0.15, check)
    assert outcomes["CorruptionError"] > 5 * outcomes["unchanged"]


def test_no_forged_file_takes_memory_out_of_proportion(fuzz: Fuzz) -> None:
    """A few hundred bytes that claim billions get no more than what they are."""
    for forge in FORGED:  # caches fill up outside the count
        for number in range(5):
            _outcome(forge, Random(number))

    def check(rng: Random) -> Outcome:
        one = rng.choice(list(FORGED))
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        try:
            return one(rng)
        finally:
            peak = tracemalloc.get_traced_memory()[1] - before
            assert peak < 1 << 24, f"{peak} bytes"

    tracemalloc.start()
    try:
        fuzz.run(0.05, check)
    finally:
        tracemalloc.stop()


def _outcome(check: Check, rng: Random) -> Outcome:
    try:
        return check(rng)
    except FormatError as error:
        return type(error).__name__


def test_every_kind_of_container_is_reached() -> None:
    """The corpus has sets of offsets with arrays, bitmaps and runs."""
    seen: Counter[str] = Counter()
    for number in range(100):
        statistics = _offsets(Random(number)).get_statistics()
        seen["array"] += statistics["n_array_containers"]
        seen["bitset"] += statistics["n_bitset_containers"]
        seen["run"] += statistics["n_run_containers"]
    assert min(seen.values()) > 0
