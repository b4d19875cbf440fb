"""FaultyCold: fails when told to, and counts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stratalog.errors import ColdStoreError
from stratalog.fs import File
from stratalog.fs.cold import ColdStore, open_cold
from stratalog.testing import FakeDisk, FaultyCold
from stratalog.testing.cold import OPERATIONS

NAME = "a/1.seg"

CALLS: dict[str, Callable[[ColdStore], object]] = {
    "put": lambda cold: cold.put(NAME, _source()),
    "read": lambda cold: cold.read(NAME, 0, 3),
    "size": lambda cold: cold.size(NAME),
    "delete": lambda cold: cold.delete(NAME),
    "names": lambda cold: cold.names("a/"),
}


def _source() -> File:
    file = FakeDisk().open("/file", "create")
    file.pwrite([b"data"], 0)
    return file


def _cold(fail_every: int = 0) -> FaultyCold:
    cold = FaultyCold(open_cold("/cold", FakeDisk()), fail_every=fail_every)
    cold.inner.put(NAME, _source())
    return cold


def _fails(call: Callable[[ColdStore], object], cold: ColdStore) -> bool:
    try:
        call(cold)
    except ColdStoreError:
        return True
    return False


def test_without_faults_it_is_the_store_below() -> None:
    """Every call is passed on and counted, and so are bytes."""
    cold = _cold()
    assert cold.location == "/cold"
    cold.inner.delete(NAME)
    for call in CALLS.values():
        call(cold)
    assert cold.names("a/") == []
    assert cold.calls == {"put": 1, "read": 1, "size": 1, "delete": 1, "names": 2}
    assert (cold.bytes_put, cold.bytes_read) == (4, 3)


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_every_operation_can_be_unreachable(operation: str) -> None:
    """The switch works both ways, and a failed call is counted but not done."""
    cold = _cold()
    cold.is_unreachable = True
    with pytest.raises(ColdStoreError, match="cannot be reached"):
        CALLS[operation](cold)
    cold.is_unreachable = False
    assert cold.calls[operation] == 1
    assert (cold.bytes_put, cold.bytes_read) == (0, 0)
    assert cold.inner.names("") == [NAME]
    CALLS[operation](cold)


def test_every_nth_call_fails() -> None:
    """Counted from when the fault was asked for, over the operations it is for."""
    cold = _cold(fail_every=3)
    assert [_fails(CALLS["size"], cold) for _ in range(6)] == [False, False, True] * 2
    cold.fail(2, ["read"])
    assert not any(_fails(CALLS["size"], cold) for _ in range(5))
    assert [_fails(CALLS["read"], cold) for _ in range(4)] == [False, True, False, True]
    cold.fail(1)
    assert all(_fails(call, cold) for call in CALLS.values())
    cold.fail(0)
    assert not any(_fails(call, cold) for call in CALLS.values())


def test_an_answer_can_be_lost_after_the_deed() -> None:
    """The caller sees an error, the store has done it."""
    cold = _cold()
    cold.is_answer_lost = True
    cold.fail(1, ["delete"])
    assert _fails(CALLS["delete"], cold)
    assert cold.inner.names("") == []


def test_a_read_takes_as_long_as_asked() -> None:
    """By a sleep that a test can replace."""
    slept: list[float] = []
    cold = FaultyCold(open_cold("/cold", FakeDisk()), sleep=slept.append)
    cold.inner.put(NAME, _source())
    cold.read(NAME, 0, 1)
    cold.read_delay_seconds = 1.5
    cold.read(NAME, 0, 1)
    cold.size(NAME)
    assert slept == [1.5]


@pytest.mark.parametrize(("every", "operations"), [(-1, ["put"]), (1, ["get"]), (1, [])])
def test_a_fault_that_could_never_strike_is_refused(every: int, operations: list[str]) -> None:
    """A misspelt operation or a senseless count is an error, not a test that passes."""
    with pytest.raises(ValueError, match="n-th call"):
        _cold().fail(every, operations)
