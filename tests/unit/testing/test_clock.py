"""ManualClock: time moves when told to, and only as told."""

from __future__ import annotations

import pytest

from stratalog.testing import ManualClock


def test_a_clock_stands_still_until_moved() -> None:
    """Reading the clock does not move it."""
    clock = ManualClock(now_ns=5)
    assert [clock.time_ns(), clock.time_ns()] == [5, 5]
    assert clock.monotonic() == clock.monotonic()


def test_advance_moves_both_clocks() -> None:
    """Passing time shows on the wall clock and on the steady one."""
    clock = ManualClock(now_ns=0)
    before = clock.monotonic()
    clock.advance(2.5)
    assert clock.time_ns() == 2_500_000_000
    assert clock.monotonic() - before == 2.5


def test_many_small_steps_add_up_exactly() -> None:
    """A thousand steps of 0.1 s are 100 s, which floats added up are not."""
    clock = ManualClock(now_ns=0)
    for _ in range(1000):
        clock.advance(0.1)
    assert clock.time_ns() == 100_000_000_000
    assert clock.monotonic() == 100.0


@pytest.mark.parametrize("seconds", [3600.0, -3600.0])
def test_jump_moves_the_wall_clock_alone(seconds: float) -> None:
    """A wall clock set forward or back leaves intervals alone."""
    clock = ManualClock()
    wall, steady = clock.time_ns(), clock.monotonic()
    clock.jump(seconds)
    assert clock.time_ns() - wall == int(seconds) * 1_000_000_000
    assert clock.monotonic() == steady


def test_time_does_not_pass_backwards() -> None:
    """A negative advance is refused and moves nothing."""
    clock = ManualClock()
    wall = clock.time_ns()
    with pytest.raises(ValueError, match="forward only"):
        clock.advance(-1)
    assert clock.time_ns() == wall
