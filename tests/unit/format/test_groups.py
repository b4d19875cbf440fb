"""The body of a group frame: what goes in comes out, and what cannot be is corruption."""

from __future__ import annotations

import struct

import msgspec
import pytest
from pyroaring import BitMap64

from stratalog.errors import CorruptionError
from stratalog.format.groups import (
    GROUP,
    GROUP_BYTES,
    Changes,
    Description,
    GroupText,
    decode_group,
    decode_leases,
    encode_group,
    encode_leases,
)
from stratalog.model import Lease

NOW = 1_700_000_000_000_000_000
LEASES = {
    5: Lease(NOW + 30, 1, "a", NOW, 7, 0),
    9: Lease(NOW + 31, 3, "", NOW - 5, 8, 255),
    (1 << 62): Lease(0, (1 << 32) - 1, "größe", 0, 0, 1),
}
DESCRIPTION = Description("billing", "queue", NOW, {"lease": 3.5, "ttl": None})


def test_everything_comes_back() -> None:
    """Entries, what was consumed, and the text."""
    body = encode_group(
        3, 99, 12, LEASES, [1, 2, 3, 1 << 40], description=DESCRIPTION, seek=4, is_dropped=True
    )
    assert len(body) % 8 == 0
    assert decode_group(body) == Changes(
        3, 99, 12, LEASES, BitMap64([1, 2, 3, 1 << 40]),
        GroupText(["a", "", "größe"], DESCRIPTION, 4, True),
    )  # fmt: skip


def test_nothing_is_small() -> None:
    """A frame that only says that a cursor moved."""
    body = encode_group(0, 0, 17, {}, ())
    assert len(body) == GROUP_BYTES + 8
    assert decode_group(body) == Changes(0, 0, 17, {}, BitMap64(), GroupText([]))


def test_a_run_of_consumed_offsets_takes_a_few_bytes() -> None:
    """However long it is."""
    assert len(encode_group(0, 0, 0, {}, list(range(10_000, 20_000)))) < 2000
    bits = BitMap64()
    bits.add_range(0, 1 << 20)
    bits.run_optimize()
    assert len(encode_group(0, 0, 0, {}, bits)) < 600


def test_leases_alone_come_back() -> None:
    """As a snapshot has them."""
    names: dict[str, int] = {"first": 0}
    data = encode_leases(LEASES, names)
    assert list(names) == ["first", "a", "", "größe"]
    assert decode_leases(data, len(LEASES), list(names)) == LEASES
    assert decode_leases(b"", 0, []) == {}
    with pytest.raises(CorruptionError):
        decode_leases(data, len(LEASES) + 1, list(names))


def _with(body: bytes, field: int, value: int) -> bytes:
    fields = list(GROUP.unpack_from(body))
    fields[field] = value
    return GROUP.pack(*fields) + body[GROUP_BYTES:]


BODY = encode_group(3, 99, 12, LEASES, [1, 2, 3])


@pytest.mark.parametrize("count", [1, 2, 3, 64, 65, 200])
@pytest.mark.parametrize("shares", [False, True])
def test_entries_are_laid_out_as_the_format_says(count: int, shares: bool) -> None:
    """Column by column and padded, however many there are, and whichever way they are written."""
    leases = {
        7 + number: Lease(-5, 2, "", 10**18, 9, 255)
        if shares
        else Lease(1 << 62, 3 + number, f"c{number % 3}", 1 << 61, (1 << 63) - 1 - number, number)
        for number in range(count)
    }
    names: dict[str, int] = {"earlier": 0}
    data = encode_leases(leases, names)
    every = list(leases.values())
    expected = b""
    for letter, numbers in (
        ("Q", list(leases)),
        ("q", [lease.deadline for lease in every]),
        ("q", [lease.delivered_at for lease in every]),
        ("Q", [lease.serial for lease in every]),
        ("I", [lease.delivery_count for lease in every]),
        ("I", [names[lease.consumer] for lease in every]),
        ("B", [lease.priority for lease in every]),
    ):
        column = struct.pack(f"<{count}{letter}", *numbers)
        expected += column + bytes(-len(column) % 8)
    assert data == expected
    assert decode_leases(data, count, list(names)) == leases


@pytest.mark.parametrize("length", [0, 8, 24])
def test_a_body_without_its_head_is_corruption(length: int) -> None:
    """However it was cut."""
    with pytest.raises(CorruptionError, match="cut short"):
        decode_group(BODY[:length])


@pytest.mark.parametrize(
    ("field", "value"),
    [(1, 2), (1, 4), (1, 1 << 31), (2, 0), (2, 1 << 31), (3, 0), (3, 1 << 31), (4, 1 << 63),
     (5, 1 << 63)],
)  # fmt: skip
def test_numbers_that_cannot_be_are_corruption(field: int, value: int) -> None:
    """Lengths that do not fit the body, and numbers that are too large."""
    with pytest.raises(CorruptionError):
        decode_group(_with(BODY, field, value))


def test_entries_that_cannot_be_are_corruption() -> None:
    """Offsets and serials beyond 63 bits, and consumers without a name."""
    for place in (0, 9):  # the first offset, the first serial
        at = GROUP_BYTES + 8 * place
        bad = BODY[:at] + struct.pack("<Q", 1 << 63) + BODY[at + 8 :]
        with pytest.raises(CorruptionError, match="too large"):
            decode_group(bad)
    at = GROUP_BYTES + 8 * 12 + 16
    bad = BODY[:at] + struct.pack("<I", 3) + BODY[at + 4 :]
    with pytest.raises(CorruptionError, match="does not name"):
        decode_group(bad)


@pytest.mark.parametrize("text", [[], {"seek": -1}, {"seek": 1 << 63}, {"x": 1}, {"consumers": 7}])
def test_a_text_that_cannot_be_is_corruption(text: object) -> None:
    """Nothing unknown is skipped."""
    data = msgspec.msgpack.encode(text)
    body = GROUP.pack(0, 0, 0, len(data), 0, 0) + data + bytes(-len(data) % 8)
    with pytest.raises(CorruptionError):
        decode_group(body)
