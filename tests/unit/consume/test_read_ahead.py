"""Records as columns, taken out in order, against a list of them."""

from __future__ import annotations

from itertools import repeat
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.consume.read_ahead import Rows
from stratalog.model import NO_HEADERS, NO_LEASE, Delivery, Lease, Message

LEASE = Lease(5, 1, "c", 1, 7, 0)


def _fields(first: int, count: int, *, is_wide: bool) -> list[Any]:
    """A batch: columns in the order of `Record`."""
    offsets = list(range(first, first + count))
    values = [b"%d" % offset for offset in offsets]
    if not is_wide:
        times = [first] * count
        return [values, repeat(None), repeat(NO_HEADERS), repeat(None), repeat(None), times,
                offsets, repeat(0), repeat(0), repeat(0), repeat(0)]  # fmt: skip
    return [values, [b"k%d" % o for o in offsets], repeat(NO_HEADERS), repeat(None), repeat(None),
            repeat(first), offsets, [3] * count, [o * 10 + 1 for o in offsets], repeat(0),
            repeat(0)]  # fmt: skip


def _seen(deliveries: list[Delivery]) -> list[tuple[Any, ...]]:
    return [
        (one.value, one.timestamp, one.offset, one.key, one.priority, one.expires_at)
        for one in deliveries
    ]


def _model(first: int, count: int, *, is_wide: bool) -> list[tuple[Any, ...]]:
    return [
        (b"%d" % o, first, o, b"k%d" % o, 3, o * 10 + 1) if is_wide else (b"%d" % o, first, o,
         None, 0, 0)
        for o in range(first, first + count)
    ]  # fmt: skip


def _added(parts: list[tuple[int, bool]]) -> tuple[Rows, list[tuple[Any, ...]]]:
    """Rows of batches of so many records, plain or wide, and what they come to."""
    rows = Rows()
    model: list[tuple[Any, ...]] = []
    for count, is_wide in parts:
        first = 10 * len(model)
        rows.add(_fields(first, count, is_wide=is_wide))
        model += _model(first, count, is_wide=is_wide)
    return rows, model


batches = st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=4)


@settings(database=None, deadline=None, max_examples=200)
@given(batches, st.lists(st.integers(1, 4), max_size=12))
def test_rows_are_taken_as_they_were_added(parts: list[tuple[int, bool]], takes: list[int]) -> None:
    """One and many at a time, plain batches and others in any order."""
    rows, model = _added(parts)
    assert _seen(rows.deliveries(Delivery, None, NO_LEASE)) == model
    assert rows.has_expiry == any(is_wide for _, is_wide in parts)
    rows.reverse()
    for limit in takes:
        if limit == 1 and rows:
            one = rows.pop(Message, "queue", LEASE)
            assert (one.source, one.lease) == ("queue", LEASE)
            found = [one]
        else:
            found = rows.take(limit).deliveries(Message, "queue", LEASE)
        wanted, model = model[:limit], model[limit:]
        assert _seen(found) == wanted
        assert len(rows) == len(model)


@pytest.mark.slow
@settings(database=None, deadline=None, max_examples=200)
@given(batches, st.sets(st.integers(0, 60)), st.integers(0, 700))
def test_what_is_gone_is_left_out(parts: list[tuple[int, bool]], gone: set[int], now: int) -> None:
    """By offset, and by the time to live."""
    rows, model = _added(parts)
    assert rows.expired(now) == {one[2] for one in model if one[5] and one[5] <= now}
    rows.leave_out(gone)
    left = [one for one in model if one[2] not in gone]
    assert _seen(rows.deliveries(Delivery, None, NO_LEASE)) == left


def test_one_that_was_given_back_is_in_its_old_place() -> None:
    """Also one with more to it than those that are there."""
    rows = Rows()
    rows.add(_fields(0, 6, is_wide=False))
    wide = Rows()
    wide.add(_fields(6, 1, is_wide=True))
    rows.reverse()
    taken = rows.take(2).deliveries(Delivery, None, LEASE)
    rows.insert(taken[0])
    rows.insert(*wide.deliveries(Delivery, None, LEASE))
    rows.insert(taken[1])
    assert rows.has_expiry
    assert _seen(rows.take(9).deliveries(Delivery, None, LEASE)) == [
        *_model(0, 6, is_wide=False), *_model(6, 1, is_wide=True)
    ]  # fmt: skip
