"""Delays: sorted runs of times and places."""

from __future__ import annotations

import random

import numpy as np
import pytest
from pyroaring import BitMap64

from stratalog.errors import CorruptionError
from stratalog.state.delays import NEVER, Delays


def _add(delays: Delays, *items: tuple[int, int, int]) -> None:
    due, offsets, priorities = zip(*items, strict=True)
    delays.add(np.array(due, np.int64), np.array(offsets, np.int64), np.array(priorities, np.uint8))


def _pop(delays: Delays, now: int) -> list[tuple[int, int]]:
    offsets, priorities = delays.pop_due(now)
    return list(zip(offsets.tolist(), priorities.tolist(), strict=True))


def test_what_is_due_comes_out_and_the_rest_stays() -> None:
    """With its priority, whatever the order it came in."""
    delays = Delays()
    assert (delays.next_due, len(delays)) == (NEVER, 0)
    _add(delays, (50, 1, 255), (20, (1 << 56) - 1, 0))
    _add(delays, (30, 3, 7))
    assert delays.next_due == 20
    assert _pop(delays, 19) == []
    assert _pop(delays, 30) == [((1 << 56) - 1, 0), (3, 7)]
    assert (delays.next_due, len(delays)) == (50, 1)
    assert _pop(delays, 50) == [(1, 255)]
    assert delays.next_due == NEVER


def test_they_come_out_as_they_would_of_a_list() -> None:
    """Added one at a time and many at once, taken, removed, saved and read back."""
    rng = random.Random(5)
    delays = Delays()
    model: dict[int, tuple[int, int]] = {}
    now = offset = 0
    for _ in range(400):
        count = rng.choice((1, 1, 1, 2, 50))
        items = [
            (now + rng.randrange(1, 400), offset + n, rng.randrange(256)) for n in range(count)
        ]
        offset += count
        _add(delays, *items)
        model |= {place: (due, priority) for due, place, priority in items}
        now += rng.randrange(40)
        due = {place: p for place, (time, p) in model.items() if time <= now}
        assert dict(_pop(delays, now)) == due
        model = {place: item for place, item in model.items() if place not in due}
        if rng.random() < 0.1 and model:
            gone = rng.sample(sorted(model), len(model) // 3)
            delays.remove(BitMap64(gone))
            model = {place: item for place, item in model.items() if place not in gone}
        if rng.random() < 0.1:
            delays = Delays.from_bytes(delays.to_bytes())
        assert len(delays) == len(model)
        assert sorted(delays.offsets().tolist()) == sorted(model)
        assert delays.next_due == min((due for due, _ in model.values()), default=NEVER)


def test_they_take_13_bytes_each() -> None:
    """And adding one after the other makes few runs."""
    delays = Delays()
    for number in range(1000):
        _add(delays, (number, number, 0))
    assert len(delays._runs) <= 11
    arrays = [array for run in delays._runs for array in (run.due, run.distances, run.priorities)]
    assert delays.held_bytes == sum(array.nbytes for array in arrays) == 13_000


def test_half_of_one_is_corruption() -> None:
    """Messages of a snapshot."""
    with pytest.raises(CorruptionError, match="multiple of 16"):
        Delays.from_bytes(bytes(24))


def test_offsets_may_be_any_distance_apart() -> None:
    """They are kept as distances of 32 bits, in as many runs as that takes."""
    delays = Delays()
    far = [(n * 7 % 5, n << 31, n % 256) for n in range(40)]
    _add(delays, *far[:20])
    for one in far[20:]:
        _add(delays, one)
    again = Delays.from_bytes(delays.to_bytes())
    for found in (delays, again):
        assert sorted(found.offsets().tolist()) == sorted(one[1] for one in far)
        taken = [item for now in range(5) for item in _pop(found, now)]
        assert sorted(taken) == sorted((place, priority) for _, place, priority in far)
        assert len(found) == 0
