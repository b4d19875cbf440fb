"""Snapshots: what is written is read back, and nothing else is."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import pytest
from pyroaring import BitMap64
from xxhash import xxh3_64_intdigest

from stratalog.errors import BadMagicError, CorruptionError, FormatError, UnsupportedVersionError
from stratalog.format.segment import State, Summary, decode_summaries, encode_summaries
from stratalog.format.snapshot import (
    HEADER,
    HEADER_BYTES,
    MAGIC,
    SECTION,
    SECTION_BYTES,
    CatalogState,
    GroupSnapshot,
    GroupsState,
    LogState,
    QueueSnapshot,
    QueuesState,
    Snapshot,
    TopicState,
    decode_snapshot,
    encode_snapshot,
)

NOW = 1_700_000_000_000_000_000
SEGMENTS = [
    Summary(100, 200, 90, 4096, NOW, NOW + 5, 0, NOW, State.COLD),
    Summary(200, 300, 100, 5000, NOW + 5, NOW + 9, NOW + 50, NOW, State.SEALED),
    Summary(300, 320, 20, 264, NOW + 9, NOW + 9, 0, NOW, State.OPEN),
]
TOPIC = TopicState(
    id=7,
    name="größe/注文",
    kind="topic",
    created_at=NOW,
    epoch=2,
    version=3,
    options={"ttl": 1.5, "compression": "zstd", "a": None, "b": True},
    next_offset=320,
    last_timestamp=NOW + 9,
    earliest=100,
    evicted_below=90,
    evicted_reason="evicted",
    reservation=4,
    checkpointed=320,
    deleted=BitMap64([150, 1 << 40]).serialize(),
    lost=BitMap64(range(210, 220)).serialize(),
    segments=encode_summaries(SEGMENTS),
)
LOG = LogState({0: 4096, 7: (1 << 63) - 1})
CATALOG = CatalogState(8, {"gone": 2}, "s3://bucket/cold", [TOPIC], [3, 5])
SNAPSHOT = Snapshot(12, NOW, bytes(range(16)), LOG, CATALOG)
DATA = encode_snapshot(SNAPSHOT)

CATALOG_FIELDS = msgspec.to_builtins(CATALOG, builtin_types=(bytes,))
TOPIC_FIELDS = CATALOG_FIELDS["topics"][0]


def _section(type: int, data: bytes, **changes: int) -> bytes:
    """A section, any field of its header changed and the checksum right for it."""
    fields = {"type": type, "codec": 0, "length": len(data), "raw_length": len(data)} | changes
    head = SECTION.pack(*fields.values(), 0)[:-8]
    return head + struct.pack("<Q", xxh3_64_intdigest(head + data)) + data


def _file(*sections: bytes, **changes: Any) -> bytes:
    """A snapshot of these sections, any field of its header changed and the checksum right."""
    body = b"".join(sections)
    fields = {
        "magic": MAGIC, "version": 1, "section_count": len(sections), "number": 12,
        "created_at": NOW, "identity": bytes(range(16)), "length": HEADER_BYTES + len(body),
    } | changes  # fmt: skip
    head = HEADER.pack(*fields.values(), 0)[:-8]
    return head + struct.pack("<Q", xxh3_64_intdigest(head)) + body


LOG_SECTION = _section(1, msgspec.msgpack.encode(LOG))
CATALOG_SECTION = _section(2, msgspec.msgpack.encode(CATALOG))


def _catalog(fields: Any) -> bytes:
    return _file(LOG_SECTION, _section(2, msgspec.msgpack.encode(fields)))


def test_a_snapshot_reads_back() -> None:
    """Positions, topics and everything known of them."""
    assert decode_snapshot(DATA) == SNAPSHOT
    assert decode_summaries(decode_snapshot(DATA).catalog.topics[0].segments) == SEGMENTS


def test_a_snapshot_of_nothing_reads_back() -> None:
    """A store without a topic has one too."""
    empty = Snapshot(1, 0, bytes(16), LogState({}), CatalogState(1, {}, "", [], []))
    assert decode_snapshot(encode_snapshot(empty)) == empty


def test_forging_without_a_change_gives_the_same_snapshot() -> None:
    """The helpers the tests below lean on are right."""
    assert _file(LOG_SECTION, CATALOG_SECTION) == DATA
    assert _catalog(CATALOG_FIELDS) == DATA


@pytest.mark.parametrize("data", [b"", bytes(64), b"STRASNAX" + DATA[8:], b"#!/bin/sh\n"])
def test_another_file_is_not_a_snapshot(data: bytes) -> None:
    """Something else of that name is told from a damaged snapshot."""
    with pytest.raises(BadMagicError, match="not a snapshot"):
        decode_snapshot(data)


def test_a_snapshot_cut_short_anywhere_is_an_error() -> None:
    """A torn write is never a smaller snapshot."""
    for length in range(len(DATA)):
        with pytest.raises(FormatError):
            decode_snapshot(DATA[:length])
    with pytest.raises(CorruptionError, match="cut short: 63 of 64"):
        decode_snapshot(DATA[:63])


def test_bytes_behind_a_snapshot_are_corruption() -> None:
    """Its length is in its header."""
    with pytest.raises(CorruptionError, match=f"{len(DATA) + 1} bytes, {len(DATA)} expected"):
        decode_snapshot(DATA + b"\0")


def test_every_flipped_bit_of_a_snapshot_is_noticed() -> None:
    """Both kinds of header and all sections are under a checksum."""
    for bit in range(8 * len(DATA)):
        flipped = bytearray(DATA)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises((BadMagicError, CorruptionError)):
            decode_snapshot(bytes(flipped))


@pytest.mark.parametrize("version", [2, 255, (1 << 32) - 1])
def test_a_newer_snapshot_says_to_upgrade(version: int) -> None:
    """Once its checksum is right, whatever its sections are; a broken one is only broken."""
    newer = _file(LOG_SECTION, _section(9, b"new"), version=version)
    with pytest.raises(UnsupportedVersionError, match=f"version {version}.*upgrade"):
        decode_snapshot(newer)
    with pytest.raises(CorruptionError, match="checksum"):
        decode_snapshot(newer[:63] + bytes([newer[63] ^ 1]) + newer[64:])


def test_version_0_is_corruption_not_something_to_upgrade_for() -> None:
    """There never was a version 0."""
    with pytest.raises(CorruptionError, match="never was"):
        decode_snapshot(_file(LOG_SECTION, CATALOG_SECTION, version=0))


@pytest.mark.parametrize("length", [0, HEADER_BYTES, len(DATA) - 1, len(DATA) + 8, (1 << 64) - 1])
def test_a_length_that_is_not_that_of_the_file_is_corruption(length: int) -> None:
    """In the header, under a right checksum."""
    with pytest.raises(CorruptionError, match=f"{length} expected"):
        decode_snapshot(_file(LOG_SECTION, CATALOG_SECTION, length=length))


@pytest.mark.parametrize("count", [0, 1, 9, (1 << 32) - 1])
def test_a_number_of_sections_that_is_not_known_is_corruption(count: int) -> None:
    """Version 1 has two that are always there, and a few more."""
    with pytest.raises(CorruptionError, match=f"{count} sections"):
        decode_snapshot(_file(LOG_SECTION, CATALOG_SECTION, section_count=count))


@pytest.mark.parametrize(
    "sections",
    [
        (LOG_SECTION, LOG_SECTION),
        (CATALOG_SECTION, CATALOG_SECTION),
        (LOG_SECTION, CATALOG_SECTION, LOG_SECTION),
        (LOG_SECTION, CATALOG_SECTION, b"\0" * 8),
        (LOG_SECTION, CATALOG_SECTION[: SECTION_BYTES - 1]),
        (LOG_SECTION,),
    ],
)
def test_sections_missing_twice_or_too_many_are_corruption(sections: tuple[bytes, ...]) -> None:
    """Each is there once, and nothing else is."""
    with pytest.raises(CorruptionError, match="section"):
        decode_snapshot(_file(*sections, section_count=2))


@pytest.mark.parametrize("type", [3, 4])
def test_sections_that_say_nothing_are_left_out(type: int) -> None:
    """A store without queues has the snapshots it always had; one that is there is read."""
    assert decode_snapshot(DATA).groups == GroupsState()
    empty = _section(type, msgspec.msgpack.encode({}))
    assert decode_snapshot(_file(LOG_SECTION, CATALOG_SECTION, empty, section_count=3)) == SNAPSHOT
    with pytest.raises(CorruptionError, match="log or its catalog"):
        decode_snapshot(_file(LOG_SECTION, empty))


def test_groups_and_queues_are_read_back() -> None:
    """With everything they know."""
    group = GroupSnapshot(
        7, 0, "", "queue", NOW, {"lease": 3.0}, 12, 1000, 20, 9, 0, False,
        {5: BitMap64([1, 2, 900]).serialize()}, b"\1" * 16, 0, b"", [],
    )  # fmt: skip
    full = SNAPSHOT._replace(
        groups=GroupsState([group]), queues=QueuesState([QueueSnapshot(7, 1000, bytes(32))])
    )
    assert decode_snapshot(encode_snapshot(full)) == full


def test_sections_may_come_in_any_order() -> None:
    """They say what they are."""
    assert decode_snapshot(_file(CATALOG_SECTION, LOG_SECTION)) == SNAPSHOT


@pytest.mark.parametrize("length", [len(CATALOG_SECTION), 1 << 31, 1 << 40, (1 << 64) - 1])
def test_a_section_longer_than_the_file_is_corruption(length: int) -> None:
    """Nothing of that size is allocated on its word."""
    data = msgspec.msgpack.encode(CATALOG)
    with pytest.raises(CorruptionError, match=f"{length} bytes is cut short"):
        decode_snapshot(_file(LOG_SECTION, _section(2, data, length=length, raw_length=length)))


@pytest.mark.parametrize("changes", [{"type": 0}, {"type": 99}, {"codec": 1}, {"raw_length": 5}])
def test_a_section_of_an_unknown_kind_is_corruption(changes: dict[str, int]) -> None:
    """It is not skipped: what it says would be lost."""
    data = msgspec.msgpack.encode(CATALOG)
    with pytest.raises(CorruptionError, match="is not known"):
        decode_snapshot(_file(LOG_SECTION, _section(**{"type": 2, "data": data} | changes)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        [],
        None,
        {name: item for name, item in CATALOG_FIELDS.items() if name != "topics"},
        CATALOG_FIELDS | {"surprise": 1},
        CATALOG_FIELDS | {"next_topic_id": "8"},
        CATALOG_FIELDS | {"epochs": {1: 2}},
        CATALOG_FIELDS | {"epochs": {"a": "b"}},
        CATALOG_FIELDS | {"dropped": [None]},
        CATALOG_FIELDS | {"topics": [TOPIC_FIELDS[:-1]]},
        CATALOG_FIELDS | {"topics": [[*TOPIC_FIELDS, 1]]},
        CATALOG_FIELDS | {"topics": [["7", *TOPIC_FIELDS[1:]]]},
        CATALOG_FIELDS | {"topics": [[*TOPIC_FIELDS[:-1], "text"]]},
        CATALOG_FIELDS | {"topics": [{"id": 7}]},
    ],
)
def test_a_catalog_with_wrong_fields_is_corruption(fields: Any) -> None:
    """Missing, mistyped, unknown and too many: all are errors with a name."""
    with pytest.raises(CorruptionError, match="section 2 does not decode"):
        decode_snapshot(_catalog(fields))


@pytest.mark.parametrize("data", [b"", b"\xc1", msgspec.msgpack.encode(LOG) + b"\0"])
def test_a_section_that_is_not_messagepack_is_corruption(data: bytes) -> None:
    """Under a right checksum, empty, and with something after it."""
    with pytest.raises(CorruptionError, match="section 1 does not decode"):
        decode_snapshot(_file(_section(1, data), CATALOG_SECTION))


def test_a_name_that_is_not_utf_8_is_corruption() -> None:
    """Text is checked when it is read."""
    data = msgspec.msgpack.encode(CATALOG).replace(b"topic", b"\xff\xff\xff\xff\xff")
    with pytest.raises(CorruptionError, match="does not decode"):
        decode_snapshot(_file(LOG_SECTION, _section(2, data)))


@pytest.mark.parametrize("deep", [b"\x91" * 100_000 + b"\xc0", b"\x81\xa1a" * 100_000 + b"\xc0"])
def test_fields_nested_without_end_are_corruption(deep: bytes) -> None:
    """Whether it is a map's unknown field or an item too many, it is an error of ours.

    Unknown fields were skipped, however deep they were, and that raised a RecursionError.
    """
    field = b"\x82\xa6shards\x80\xa4more" + deep
    with pytest.raises(CorruptionError, match="does not decode"):
        decode_snapshot(_file(_section(1, field), CATALOG_SECTION))
    packed = msgspec.msgpack.encode(CATALOG_FIELDS | {"topics": [[*TOPIC_FIELDS, "####"]]})
    data = packed.replace(b"\xa4####", deep)
    with pytest.raises(CorruptionError, match="does not decode"):
        decode_snapshot(_file(LOG_SECTION, _section(2, data)))


@pytest.mark.parametrize("field", [b"topics", b"dropped", b"epochs"])
def test_a_list_that_claims_billions_of_items_is_corruption(field: bytes) -> None:
    """Its length is not believed before its items are there."""
    claim = b"\xdf\xff\xff\xff\xff" if field == b"epochs" else b"\xdd\xff\xff\xff\xff"
    data = msgspec.msgpack.encode(CATALOG_FIELDS | {field.decode(): None})
    data = data.replace(field + b"\xc0", field + claim)
    with pytest.raises(CorruptionError, match="does not decode"):
        decode_snapshot(_file(LOG_SECTION, _section(2, data)))
