"""Fixtures for tests of programs that use Stratalog; pytest finds them by itself.

- `store`: a store in memory, with the time of `clock` and the faults of `faults`.
- `clock`: time that passes when the test says so.
- `faults`: errors of the disk, at exactly the call that the test asks for.
- `reopen`: closes the store, or crashes it, and opens it again.

Nothing runs in the background, so that a test does the same in every run: `store.checkpoint()`,
`store.run_schedules()` and `route.wait()` do what the background would. Nothing of the package is
imported before a test asks for a fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from stratalog import Store
    from stratalog.testing import FakeDisk, FaultFs, ManualClock

_PATH = "/:memory:"


class Reopen:
    """Ends the store of a test and opens it again, on what is left of its disk."""

    def __init__(self, disk: FakeDisk, faults: FaultFs, clock: ManualClock) -> None:
        self._disk = disk
        self._faults = faults
        self._clock = clock
        self._store: Store | None = None

    def __call__(self, *, crash: bool = False, seed: int = 0) -> Store:
        """Close the store and open it again; the one before must not be used any more.

        With `crash` the power goes instead: what was not durable is lost, kept or torn, as the
        seed says.
        """
        if self._store is not None:
            if crash:
                _stop(self._store)
                self._disk = self._disk.crash(seed)
            else:
                self._store.close()
        return self.open()

    def open(self) -> Store:
        """Open the store."""
        from stratalog import Store, StoreOptions

        self._faults.inner = self._disk
        options = StoreOptions(shards=2, log_chunk_bytes=64 << 10)
        self._store = Store(_PATH, options, fs=self._faults, clock=self._clock, background=False)
        return self._store

    def close(self) -> None:
        """End the store, whatever the disk says."""
        from stratalog import StratalogError

        if self._store is not None and not self._store.is_closed:
            try:
                self._store.close()
            except StratalogError:  # a fault of the test's: it has seen what it wanted
                _stop(self._store)


def _stop(store: Store) -> None:
    """Leave a store as a killed process does: nothing more is written."""
    store.forget()
    store.close()


@pytest.fixture
def clock() -> ManualClock:
    """Time that passes when the test says so: `clock.advance(3600.0)`."""
    from stratalog.testing import ManualClock

    return ManualClock()


@pytest.fixture
def faults() -> FaultFs:
    """Errors of the disk: `faults.add(Fault(operation="fdatasync"))`."""
    from stratalog.testing import FakeDisk, FaultFs

    return FaultFs(FakeDisk())


@pytest.fixture
def reopen(faults: FaultFs, clock: ManualClock) -> Iterator[Reopen]:
    """Close the store and open it again: `store = reopen()`, or `reopen(crash=True)`."""
    from stratalog.testing import FakeDisk

    assert isinstance(faults.inner, FakeDisk)
    ends = Reopen(faults.inner, faults, clock)
    yield ends
    ends.close()


@pytest.fixture
def store(reopen: Reopen) -> Store:
    """A new store in memory, closed when the test ends."""
    return reopen.open()
