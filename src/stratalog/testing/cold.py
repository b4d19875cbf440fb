"""A cold store that fails, hangs or disappears when told to, and counts what it was asked.

Invariants:
- Every call is counted once, whether it fails or not; bytes are those of calls that succeeded.
- A call that fails does nothing to the store below, unless `is_answer_lost`.

Concurrency: any thread may call anything and turn any switch.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeVar

from stratalog.errors import ColdStoreError
from stratalog.fs.cold import ColdStore, Source

OPERATIONS = frozenset({"put", "read", "size", "delete", "names"})
"""Operations that can fail: every call but `close`."""

_T = TypeVar("_T")


class FaultyCold:
    """A `ColdStore` around another; its attributes are switches that may be turned at any time.

    `fail_every` n fails every n-th call of `operations` from when it was set: 1 is all of them,
    0 none. `is_unreachable` fails every call. With `is_answer_lost` a failing call is carried out
    first. Each read first waits for `read_delay_seconds`.
    """

    def __init__(
        self,
        inner: ColdStore,
        *,
        fail_every: int = 0,
        operations: Iterable[str] = OPERATIONS,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.inner = inner
        self.location = inner.location
        self.is_unreachable = False
        self.is_answer_lost = False
        self.read_delay_seconds = 0.0
        self.calls: Counter[str] = Counter()
        self.bytes_read = 0
        self.bytes_put = 0
        self._sleep = sleep
        self._lock = threading.Lock()
        self._hanging: frozenset[str] = frozenset()
        self._is_let_go = threading.Event()
        self.hung = threading.Semaphore(0)
        """Released by each call that begins to hang: a test waits for it."""
        self.fail(fail_every, operations)

    def fail(self, every: int, operations: Iterable[str] = OPERATIONS) -> None:
        """From now on fail every n-th call of these operations; 0 fails none."""
        chosen = frozenset(operations)
        # A fault that can never strike would make its test pass for the wrong reason.
        if every < 0 or not chosen or not chosen <= OPERATIONS:
            raise ValueError(
                f"fail every n-th call, n >= 0, of some of {', '.join(sorted(OPERATIONS))}: got "
                f"{every} of {sorted(chosen)}"
            )
        with self._lock:
            self._every, self._operations, self._seen = every, chosen, 0

    def hang(self, operations: Iterable[str] = OPERATIONS) -> None:
        """From now on calls of these operations do not return, until `let_go`."""
        with self._lock:
            self._hanging = frozenset(operations)
            self._is_let_go = threading.Event()

    def let_go(self) -> None:
        """Have calls that hang go on, and no further ones hang."""
        with self._lock:
            self._hanging = frozenset()
            self._is_let_go.set()

    def put(self, name: str, source: Source) -> bool:
        is_new = self._meet("put", name, lambda: self.inner.put(name, source))
        if is_new:
            with self._lock:
                self.bytes_put += source.size()
        return is_new

    def read(self, name: str, position: int, length: int) -> bytes:
        if self.read_delay_seconds:
            self._sleep(self.read_delay_seconds)
        data = self._meet("read", name, lambda: self.inner.read(name, position, length))
        with self._lock:
            self.bytes_read += len(data)
        return data

    def size(self, name: str) -> int | None:
        return self._meet("size", name, lambda: self.inner.size(name))

    def delete(self, name: str) -> None:
        self._meet("delete", name, lambda: self.inner.delete(name))

    def names(self, prefix: str) -> list[str]:
        return self._meet("names", prefix, lambda: self.inner.names(prefix))

    def close(self) -> None:
        self.inner.close()

    def _meet(self, operation: str, name: str, call: Callable[[], _T]) -> _T:
        """Count the call, and carry it out or fail it."""
        with self._lock:
            hanging = self._is_let_go if operation in self._hanging else None
        if hanging is not None:
            self.hung.release()
            hanging.wait()
        with self._lock:
            self.calls[operation] += 1
            is_due = False
            if operation in self._operations:
                self._seen += 1
                is_due = self._every > 0 and self._seen % self._every == 0
        if not is_due and not self.is_unreachable:
            return call()
        if self.is_answer_lost:
            call()
        why = "it cannot be reached" if self.is_unreachable else "a fault was asked for"
        raise ColdStoreError(
            f"cannot {operation} {name!r} in the cold store {self.location}: {why}"
        )
