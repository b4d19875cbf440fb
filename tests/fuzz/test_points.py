"""Records of points against bytes that no writer of ours made."""

from __future__ import annotations

import struct
import tracemalloc
from random import Random

import numpy as np

from stratalog.format.points import (
    HEADER_BYTES,
    Column,
    FieldType,
    Points,
    arrange,
    decode_points,
    encode_points,
)
from tests.fuzz.inputs import NOW, Fuzz, Outcome, mutate, some_number


def _points(rng: Random) -> Points:
    count = rng.choice((1, 2, 3, 9))
    series = [b"", b"host=a", b"host=b,region=eu"][: rng.randrange(1, 4)]
    fields = {}
    for type in FieldType:
        if rng.random() < 0.6:
            valid = np.array([rng.random() < 0.7 for _ in range(count)])
            values = {
                FieldType.FLOAT: np.array([rng.random() for _ in range(count)]),
                FieldType.INT: np.array([rng.randrange(1 << 40) for _ in range(count)], np.int64),
                FieldType.BOOL: np.array([rng.random() < 0.5 for _ in range(count)]),
                FieldType.TEXT: np.array([rng.choice(("", "é", "abc"))] * count, np.object_),
            }[type]
            fields[type.name] = Column(type, values, None if rng.random() < 0.5 else valid)
    codes = np.array([rng.randrange(len(series)) for _ in range(count)])
    times = np.array([NOW + rng.randrange(5) for _ in range(count)], np.int64)
    return arrange(series, codes, times, fields)


def _forged(rng: Random) -> bytes:
    data = encode_points(_points(rng))
    for _ in range(rng.choice((1, 1, 1, 3))):
        data = mutate(rng, data)
    if len(data) >= HEADER_BYTES and rng.random() < 0.8:  # the length as it is
        data = data[:20] + struct.pack("<I", len(data)) + data[24:]
    if len(data) >= HEADER_BYTES and rng.random() < 0.3:
        place = rng.choice((6, 8, 12, 16))
        number = some_number(rng) & (0xFFFF if place == 6 else 0xFFFFFFFF)
        width = 2 if place == 6 else 4
        data = data[:place] + number.to_bytes(width, "little") + data[place + width :]
    return data


def test_forged_points_are_consistent_or_refused(fuzz: Fuzz) -> None:
    """Decoded points agree with themselves; checked in full, they encode to the original bytes."""

    def check(rng: Random) -> Outcome:
        data = _forged(rng)
        points = decode_points(data)
        assert int(points.counts.sum()) == len(points.times) == len(points)
        assert len(points.series) == len(points.counts)
        for column in points.fields.values():
            assert len(column.values) == len(points)
            assert column.valid is None or len(column.valid) == len(points)
        points = decode_points(data, check=True)
        again = decode_points(encode_points(points), check=True)
        assert again.series == points.series
        assert np.array_equal(again.times, points.times)
        return "decoded"

    outcomes = fuzz.run(0.3, check)
    assert outcomes["decoded"]
    assert outcomes["CorruptionError"]


def test_random_bytes_are_no_points(fuzz: Fuzz) -> None:
    """Neither with the magic nor without."""

    def check(rng: Random) -> Outcome:
        decode_points(rng.choice((b"", b"STPT", b"STPT\1\0")) + rng.randbytes(rng.randrange(80)))
        return "decoded"

    assert not fuzz.run(0.1, check)["decoded"]


def test_no_forged_points_take_memory_out_of_proportion(fuzz: Fuzz) -> None:
    """A count of four billion in forty bytes is refused before anything is allocated."""
    decode_points(
        encode_points(_points(Random(1))), check=True
    )  # whatever is imported on first use

    def check(rng: Random) -> Outcome:
        data = _forged(rng)
        tracemalloc.start()
        try:
            decode_points(data, check=True)
        finally:
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert peak < 64 << 10, peak
        return "decoded"

    fuzz.run(0.02, check)
