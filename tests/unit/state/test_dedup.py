"""The deduplication window, against a dictionary."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from stratalog.errors import CorruptionError
from stratalog.state.dedup import Dedup


def test_ids_are_found_until_they_expire() -> None:
    """And forgotten, the oldest first."""
    dedup = Dedup(1000)
    dedup.add(b"a", 7, 100)
    dedup.add(b"", 8, 200)
    assert (dedup.find(b"a", 99), dedup.find(b"", 99), dedup.find(b"b", 0)) == (7, 8, -1)
    assert dedup.find(b"a", 100) == -1
    dedup.expire(100)
    assert (len(dedup), dedup.find(b"a", 0), dedup.find(b"", 100)) == (1, -1, 8)


def test_an_id_that_was_claimed_and_not_placed_is_nobodys() -> None:
    """Whatever came in between: the message was not put, so the next one with this id is."""
    dedup = Dedup(1000)
    assert dedup.claim(b"a", 0) == dedup.claim(b"a", 0) == dedup.find(b"a", 0) == -1
    dedup.add(b"b", 8, 200)
    assert (dedup.claim(b"a", 0), dedup.find(b"b", 0), len(dedup)) == (-1, 8, 1)
    dedup.place(9, 300)
    assert (dedup.claim(b"a", 0), len(dedup)) == (9, 2)
    assert dedup.claim(b"b", 250) == -1  # it counts no longer
    assert (dedup.find(b"b", 250), len(dedup)) == (-1, 2)


def test_it_does_what_a_dictionary_does() -> None:
    """Through growing, wrapping around, evicting, expiring, and being saved and read back."""
    rng = random.Random(7)
    for entries_max in (1, 50, 64, 200):
        dedup = Dedup(entries_max)
        model: dict[bytes, tuple[int, int]] = {}
        now = 0
        for offset in range(2000):
            now += rng.randrange(3)
            dedup.expire(now)
            model = {key: item for key, item in model.items() if item[1] > now}
            key = b"%d" % rng.randrange(300)
            expected = model.get(key, (-1, 0))[0]
            assert dedup.find(key, now) == expected
            if expected < 0:
                if len(model) >= entries_max:
                    del model[next(iter(model))]
                model[key] = (offset, now + 100)
                dedup.add(key, offset, now + 100)
            if rng.random() < 0.01:
                other = Dedup(entries_max)
                other.restore(dedup.to_bytes())
                dedup = other
            if rng.random() < 0.01:
                dedup.forget_from(offset)
                model = {key: item for key, item in model.items() if item[0] < offset}
            assert len(dedup) == len(model)
        assert all(dedup.find(key, now) == item[0] for key, item in model.items())


@pytest.mark.slow
def test_an_entry_takes_no_more_than_120_bytes() -> None:
    """At the worst of times, which is just after it has grown."""
    for count in (32_769, 40_000, 65_537):
        tracemalloc.start()
        dedup = Dedup(1 << 20)
        for number in range(count):
            dedup.add(b"%d" % number, number, 10**9)
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert used / count <= 120
        assert dedup.held_bytes <= used


def test_half_an_entry_is_corruption() -> None:
    """Entries of a snapshot."""
    with pytest.raises(CorruptionError, match="not whole ones"):
        Dedup(10).restore(bytes(33))
