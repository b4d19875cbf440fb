"""Rules, cursors and states of series against bytes that no writer of ours made."""

from __future__ import annotations

from random import Random

import numpy as np

from stratalog.errors import FormatError
from stratalog.format.point_records import decode_records
from stratalog.format.points import encode_points
from stratalog.format.series import (
    Cursor,
    Rules,
    Tier,
    decode_cursor,
    decode_rules,
    encode_cursor,
    encode_rules,
)
from stratalog.state.series_capture import capture_state, restore_state
from stratalog.state.series_state import SeriesState
from stratalog.state.series_write import encode_point
from tests.fuzz.inputs import Fuzz, Outcome, mutate
from tests.fuzz.test_points import _points


def _forged(rng: Random, data: bytes) -> bytes:
    for _ in range(rng.choice((1, 1, 1, 3))):
        data = mutate(rng, data)
    return data


def test_forged_rules_are_consistent_or_refused(fuzz: Fuzz) -> None:
    """Decoded rules are encoded as equal rules."""
    rules = Rules(7 * 10**9, [Tier(10**9, "avg", 10**12), Tier(60 * 10**9, "max", 0)], 5)

    def check(rng: Random) -> Outcome:
        found = decode_rules(_forged(rng, encode_rules(rules)))
        assert decode_rules(encode_rules(found)) == found
        assert all(tier.window_ns > 0 for tier in found.tiers)
        return "decoded"

    assert decode_rules(encode_rules(rules)) == rules
    assert fuzz.run(0.1, check)["CorruptionError"]


def test_forged_cursors_are_consistent_or_refused(fuzz: Fuzz) -> None:
    """Version, reserved bytes and length are looked at."""

    def check(rng: Random) -> Outcome:
        data = _forged(rng, encode_cursor(Cursor(7, rng.randrange(1 << 40))))
        found = decode_cursor(data)
        assert encode_cursor(found)[8:] == data[8:]
        return "decoded"

    assert fuzz.run(0.05, check)["CorruptionError"]


def test_a_forged_state_is_consistent_or_refused(fuzz: Fuzz) -> None:
    """A state that is taken over can be captured again, and one that is refused changes nothing."""

    def check(rng: Random) -> Outcome:
        state = _state(rng)
        kept = capture_state(state)
        data = _forged(rng, kept)
        try:
            restore_state(state, data)
        except FormatError:
            assert capture_state(state) == kept
            raise
        again = capture_state(state)
        restore_state(state, again)
        assert capture_state(state) == again
        return "decoded"

    outcomes = fuzz.run(0.3, check)
    assert outcomes["CorruptionError"]


def _state(rng: Random) -> SeriesState:
    state = SeriesState(None)  # type: ignore[arg-type]  # no topic is asked here
    values: list[bytes | None] = [encode_points(_points(rng)) for _ in range(rng.randrange(1, 5))]
    state._take_points(values, np.arange(len(values)), list(range(len(values))))
    return state


def test_many_records_are_decoded_as_each_of_them_is(fuzz: Fuzz) -> None:
    """The points of single writes are gathered by column, and come to the same."""

    def check(rng: Random) -> Outcome:
        values = []
        for _ in range(rng.randrange(1, 30)):
            if rng.random() < 0.2:
                values.append(encode_points(_points(rng)))
            else:
                key = rng.choice((b"", b"host=a", b"host=b,region=eu"))
                fields = {
                    name: kind
                    for name, kind in {
                        "x": (1, 0.5),
                        "y": (2, -7),
                        "z": (3, True),
                        "t": (4, "é"),
                    }.items()
                    if rng.random() < 0.6
                } or {"x": (1, 2.5)}
                values.append(encode_point(key, rng.randrange(9), fields))  # type: ignore[arg-type]
        if rng.random() < 0.3:
            place = rng.randrange(len(values))
            values[place] = _forged(rng, values[place])
        offsets = np.arange(len(values)) * 2 + 5
        together = _rows(decode_records(values, offsets))
        apart: dict[tuple[bytes, int], tuple[int, dict[str, str]]] = {}
        for value, offset in zip(values, offsets, strict=True):
            apart |= _rows(decode_records([value], np.array([offset])))
        assert together == apart
        return "decoded"

    outcomes = fuzz.run(0.3, check)
    assert outcomes["decoded"]
    assert outcomes["CorruptionError"]


def _rows(parts: list) -> dict[tuple[bytes, int], tuple[int, dict[str, str]]]:  # type: ignore[type-arg]
    """Points by series and time; of two, the one with the higher offset."""
    found: dict[tuple[bytes, int], tuple[int, dict[str, str]]] = {}
    for points, offsets in parts:
        keys = [
            key
            for key, count in zip(points.series, points.counts, strict=True)
            for _ in range(count)
        ]
        for place, key in enumerate(keys):
            fields = {
                name: repr(column.values[place])  # NaN is not itself
                for name, column in points.fields.items()
                if column.valid is None or column.valid[place]
            }
            at = key, int(points.times[place])
            if at not in found or found[at][0] <= int(offsets[place]):
                found[at] = int(offsets[place]), fields
    return found
