"""A feature-flag store: services ask in memory, an operator switches, and every change is kept.

Every service watches the table, from a snapshot on, so that asking for a flag never waits. An
operator switches a flag only if it still is what the operator saw, and the reason is in the audit
log if and only if the switch is.
"""

from __future__ import annotations

import tempfile
import threading
import zlib

import msgspec

import stratalog
from stratalog import CaughtUp, Store, VersionConflictError


class Flag(msgspec.Struct, frozen=True):
    """Who has a feature."""

    percent: int = 0
    """The share of users that has it."""
    users: tuple[str, ...] = ()
    """Those who have it in any case."""


class Flags:
    """The flags of one service: a copy in memory that follows the table."""

    def __init__(self, store: Store) -> None:
        self._changes = store.table("flags", type=Flag).watch(start="snapshot")
        self._flags: dict[str | bytes, Flag] = {}
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()
        self._ready.wait()

    def _follow(self) -> None:
        for item in self._changes:  # ends when the store is closed
            if isinstance(item, CaughtUp):
                self._ready.set()
            elif item.value is None:
                self._flags.pop(item.key, None)
            else:
                self._flags[item.key] = item.value

    def is_on(self, name: str, user: str) -> bool:
        """Whether a user has a feature; the same answer for the same user every time."""
        flag = self._flags.get(name, Flag())
        return user in flag.users or zlib.crc32(f"{name}/{user}".encode()) % 100 < flag.percent

    def wait(self, name: str, flag: Flag) -> None:
        """Return once a switch has arrived here, for the sake of this example."""
        while self._flags.get(name) != flag:
            threading.Event().wait(0.001)

    def close(self) -> None:
        """Wait for the thread, after the store was closed."""
        self._thread.join()


def switch(store: Store, name: str, flag: Flag, reason: str) -> int:
    """Set a flag and say why, both or neither; raises if another operator was faster."""
    current = store.table("flags", type=Flag).entry(name)
    with store.batch() as batch:
        change = batch.table("flags", type=Flag).put(
            name, flag,
            if_version=None if current is None else current.version,
            if_absent=current is None,
        )  # fmt: skip
        batch.topic("flag audit").append(reason.encode(), key=name.encode())
    assert change.version is not None
    return change.version


def main() -> None:
    """Roll a feature out, meet another operator, and look back."""
    with tempfile.TemporaryDirectory() as directory:
        with stratalog.open(directory) as store:
            flags = Flags(store)
            first = switch(store, "dark-mode", Flag(users=("ada",)), "Ada tries it")
            everyone = Flag(percent=100)
            switch(store, "dark-mode", everyone, "rolled out")
            flags.wait("dark-mode", everyone)
            print("bob has dark-mode:", flags.is_on("dark-mode", "bob"))

            table = store.table("flags", type=Flag)
            try:
                table.put("dark-mode", Flag(), if_version=first)
            except VersionConflictError as conflict:
                print("another operator was faster, at version", conflict.version)
            print("at first:", table.get("dark-mode", at=first))
            for record in store.topic("flag audit").records():
                print((record.key or b"").decode(), "-", (record.value or b"").decode())
        flags.close()


if __name__ == "__main__":
    main()
