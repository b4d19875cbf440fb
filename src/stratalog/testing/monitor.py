"""A file system that holds the engine to the order its promises need.

Rules, each checked before the call is passed on:
- a promise covers no byte that was written and not synced since;
- a promise is for a file whose every name was made durable by a sync of its directory;
- a file is renamed or linked only when all its written bytes are synced;
- a file that was linked, and so has two names, is not written or cut: it never changes again;
- after a failed sync of a file it is not written, renamed, linked or promised, as its bytes are
  unknown (it may be read, cut, removed, or replaced by another file);
- bytes that were promised are not written over, until the file was renamed (recycled) or cut.

Owns: for every file named since the monitor was made, what is not synced and what was promised.
Files that were there before count as durable; a new monitor is a new process.

Concurrency: any thread may call anything. A sync covers what was written when it began, so a
write that overlaps it is not covered. No lock is held while the disk below writes or syncs.
"""

from __future__ import annotations

import os.path
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from stratalog.fs import File, FileSystem, Lock, Mode


class OrderingViolation(AssertionError):
    """The engine did, or promised, something before what it depends on was durable."""


@dataclass(slots=True, eq=False)
class _State:
    """The state of one file, whatever it is called and however often it is open."""

    # Its names, each with the moment it got it; None once the directory was synced.
    names: dict[str, int | None]
    # (moment, position) of writes not yet synced, both ascending: an older write at or after a
    # newer one's position adds nothing, so the first entry is the lowest position.
    unsynced: list[tuple[int, int]] = field(default_factory=list)
    promised_end: int = 0
    is_sync_failed: bool = False

    def forget_from(self, position: int) -> None:
        """Forget writes at a position and after it."""
        while self.unsynced and self.unsynced[-1][1] >= position:
            self.unsynced.pop()

    def forget_until(self, moment: int) -> None:
        """Forget writes that a sync covers which began at this moment."""
        self.unsynced = [entry for entry in self.unsynced if entry[0] > moment]


class MonitorFs:
    """A `FileSystem` that raises `OrderingViolation`, and remembers every one in `violations`."""

    def __init__(self, inner: FileSystem) -> None:
        self.inner = inner
        self.violations: list[str] = []
        self._lock = threading.Lock()
        self._moment = 0
        self._states: dict[str, _State] = {}

    def check(self) -> None:
        """Raise if any rule was ever broken: a background thread may have swallowed it."""
        with self._lock:
            if self.violations:
                raise OrderingViolation("\n".join(self.violations))

    def open(self, path: str, mode: Mode) -> MonitorFile:
        with self._lock:
            file = self.inner.open(path, mode)
            key = os.path.abspath(path)
            if mode == "create":
                self._states[key] = _State({key: self._tick()})
            state = self._states.setdefault(key, _State({key: None}))
            return MonitorFile(self, file, state)

    def listdir(self, path: str) -> list[str]:
        return self.inner.listdir(path)

    def makedirs(self, path: str) -> None:
        self.inner.makedirs(path)

    def rename(self, source: str, target: str) -> None:
        old, new = os.path.abspath(source), os.path.abspath(target)
        with self._lock:
            state = self._states.get(old) or _State({old: None})
            self._require_all_synced(state, f"renamed to {target}")
            self.inner.rename(source, target)
            if self._states.get(new) is not state:  # two names of one file both stay
                self._forget(new)
                self._forget(old)
                state.names.pop(old, None)  # one that was there before the monitor too
                self._states[new] = state
                state.names[new] = self._tick()
                state.promised_end = 0

    def link(self, source: str, target: str) -> None:
        old, new = os.path.abspath(source), os.path.abspath(target)
        with self._lock:
            state = self._states.setdefault(old, _State({old: None}))
            self._require_all_synced(state, f"linked to {target}")
            self.inner.link(source, target)
            self._states[new] = state
            state.names[new] = self._tick()

    def unlink(self, path: str) -> None:
        with self._lock:
            self.inner.unlink(path)
            self._forget(os.path.abspath(path))

    def links(self, path: str) -> int:
        return self.inner.links(path)

    def sync_dir(self, path: str) -> None:
        with self._lock:
            began = self._tick()
        self.inner.sync_dir(path)
        with self._lock:
            self._synced_dir(os.path.abspath(path), began)

    def _synced_dir(self, key: str, began: int) -> None:
        for state in self._states.values():
            for name, named_at in state.names.items():
                is_older = named_at is not None and named_at < began
                if is_older and os.path.dirname(name) == key:
                    state.names[name] = None

    def lock(self, path: str, holder: str) -> Lock:
        return self.inner.lock(path, holder)

    def boot_id(self) -> str:
        return self.inner.boot_id()

    def free_bytes(self, path: str) -> int:
        return self.inner.free_bytes(path)

    def promise(self, file: File, end: int) -> None:
        if not isinstance(file, MonitorFile):
            raise TypeError(f"{file.path} was not opened through this monitor")
        state = file._state
        with self._lock:
            self._require_synced(state, f"promise up to {end}")
            if state.unsynced and state.unsynced[0][1] < end:
                self._violate(
                    state, f"promised up to {end} with bytes from {state.unsynced[0][1]} unsynced"
                )
            if not set(state.names.values()) <= {None}:
                self._violate(state, f"promised up to {end} before its directory was synced")
            state.promised_end = max(state.promised_end, end)
        self.inner.promise(file.inner, end)

    def _tick(self) -> int:
        self._moment += 1
        return self._moment

    def _forget(self, name: str) -> None:
        """A name no longer stands for the file it stood for."""
        state = self._states.pop(name, None)
        if state is not None:
            state.names.pop(name, None)

    def _require_all_synced(self, state: _State, what: str) -> None:
        self._require_synced(state, what)
        if state.unsynced:
            self._violate(state, f"{what} with bytes from {state.unsynced[0][1]} unsynced")

    def _require_one_name(self, state: _State, what: str) -> None:
        if len(state.names) > 1:
            self._violate(state, f"{what}, though it was linked and has {len(state.names)} names")

    def _require_synced(self, state: _State, what: str) -> None:
        if state.is_sync_failed:
            self._violate(state, f"{what} after a sync of it failed")

    def _violate(self, state: _State, what: str) -> NoReturn:
        text = f"{' and '.join(state.names) or 'a file without a name'}: {what}"
        self.violations.append(text)
        raise OrderingViolation(text)

    def _before_write(self, state: _State, position: int, length: int) -> None:
        with self._lock:
            self._require_synced(state, f"write at {position}")
            self._require_one_name(state, f"write at {position}")
            if length and position < state.promised_end:
                self._violate(
                    state, f"write at {position}, below the promised end {state.promised_end}"
                )
        self._wrote(state, position, length)

    def _wrote(self, state: _State, position: int, length: int) -> None:
        """Note unsynced bytes; once before the write, and once after with the later moment."""
        if not length:
            return
        with self._lock:
            state.forget_from(position)
            state.unsynced.append((self._tick(), position))

    def _before_cut(self, state: _State, size: int) -> None:
        with self._lock:
            self._require_one_name(state, f"cut to {size}")

    def _cut(self, state: _State, size: int) -> None:
        with self._lock:
            state.forget_from(size)
            state.promised_end = min(state.promised_end, size)

    def _sync(self, state: _State, file: File) -> None:
        with self._lock:
            began = self._tick()
        try:
            file.fdatasync()
        except Exception:
            with self._lock:
                state.is_sync_failed = True
            raise
        with self._lock:
            state.forget_until(began)


class MonitorFile:
    """An open file of a `MonitorFs`."""

    def __init__(self, fs: MonitorFs, inner: File, state: _State) -> None:
        self.path = inner.path
        self.inner = inner
        self._fs = fs
        self._state = state

    def pread(self, length: int, position: int) -> bytes:
        return self.inner.pread(length, position)

    def pwrite(self, buffers: Sequence[bytes], position: int) -> None:
        length = sum(memoryview(buffer).nbytes for buffer in buffers)
        self._fs._before_write(self._state, position, length)
        try:
            self.inner.pwrite(buffers, position)
        finally:
            self._fs._wrote(self._state, position, length)

    def preallocate(self, position: int, length: int) -> None:
        self._fs._before_write(self._state, position, length)
        try:
            self.inner.preallocate(position, length)
        finally:
            self._fs._wrote(self._state, position, length)

    def truncate(self, size: int) -> None:
        self._fs._before_cut(self._state, size)
        self.inner.truncate(size)
        self._fs._cut(self._state, size)

    def fdatasync(self) -> None:
        self._fs._sync(self._state, self.inner)

    def size(self) -> int:
        return self.inner.size()

    def inode(self) -> int:
        return self.inner.inode()

    def mmap(self) -> memoryview:
        return self.inner.mmap()

    def close(self) -> None:
        self.inner.close()
