"""One shard: offsets are assigned and frames enter it in one critical section; groups commit.

Group commit by leader and followers, in the callers' own threads. An append enters the open
group. The first that wants to wait leads it: it takes the commit lock (which waits for the group
before), closes the group, writes it, syncs it if anybody asked for that, publishes it and opens
the gate. The others wait at the gate of their group. Appends that nobody waits for are led by the
ticker, by a reader that wants to see them, or by the append that finds too much waiting.

Locks, in the order they are taken: `commit_lock` (who writes), then `lock` (what is open).

Invariants:
- Groups are written and published in the order they were closed; nothing is readable before.
- A failed write or sync fails the group and the open one behind it, gives their offsets back and
  poisons the shard, except for a full disk that left no trace.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from stratalog.errors import DiskFullError, PoisonedError, StratalogError, SyncFailedError
from stratalog.log.files import LogFiles, sync
from stratalog.log.group import AppendFuture, Entry, Group, Pending

# An append that finds this much waiting commits it: bounds memory, and about 1 MiB a write is
# where the cost per byte stops falling.
GROUP_BYTES_MAX = 1 << 20

# The ticker syncs once this much is written, whatever the time: a rotation, which has to wait for
# a sync of the whole file, then finds little left to do.
UNSYNCED_BYTES_MAX = 8 << 20


class Shard:
    """A log of its own: files, an open group, and one commit at a time."""

    def __init__(self, files: LogFiles, wake: Callable[[], None]) -> None:
        self.files = files
        self.lock = threading.Lock()
        self.commit_lock = threading.Lock()
        self.group = Group()
        self.refusal: StratalogError | None = None
        """Why nothing more is accepted; None while all is well."""
        self.commits = 0
        self.committed_entries = 0
        self._in_flight: Group | None = None
        self._wake = wake
        self._lost: StratalogError | None = None

    # --- entering: the shard's lock is held -----------------------------------------------

    def check(self) -> None:
        """Raise if nothing can be accepted, or if something accepted earlier was lost since."""
        if self._lost is not None:
            lost, self._lost = self._lost, None
            raise lost
        if self.refusal is not None:
            raise again(self.refusal)

    def enter(self, entry: Entry) -> Group:
        """Put a control frame, which is always synced, into the open group."""
        group = self.group
        group.entries.append(entry)
        group.bytes += len(entry.body)
        group.sync = True
        return group

    def relax(self, group: Group, *, lazy: bool) -> None:
        """Leave a group to the ticker; called with the lock held."""
        group.is_lazy = lazy and (group.is_lazy or not group.is_relaxed)
        group.is_relaxed = True
        self._wake()

    def future(self, group: Group, offset: int) -> AppendFuture:
        """A future for an entry of the open group; called with the lock held."""
        if group.condition is None:
            group.condition = threading.Condition()
            self.relax(group, lazy=False)
        return AppendFuture(group, offset, self.finish)

    # --- committing: no lock is held ------------------------------------------------------

    def commit(self, group: Group) -> None:
        """Return once the group is as durable as it asked to be; raises what went wrong."""
        self.finish(group)
        if group.error is not None:
            raise again(group.error)

    def finish(self, group: Group) -> None:
        """Return once the outcome of the group is known, leading it if nobody does."""
        with self.lock:
            leads = not group.is_led
            group.is_led = True
        if leads:
            self._lead(group)
        else:
            group.wait()

    def settle(self) -> None:
        """Make every append readable that was acknowledged without being written."""
        group = self._in_flight
        if group is not None and group.is_relaxed:
            group.wait()
        group = self.group
        if group.is_relaxed:
            self.finish(group)

    def tick(self, *, is_due: bool) -> bool:
        """Write what nobody waits for, and sync if that is due; returns whether more is left."""
        group = self.group
        if group.is_relaxed and not group.is_led and (is_due or not group.is_lazy):
            self.finish(group)
        if self.refusal is not None:
            return False
        has_filled = self.files.fill_ahead()
        unsynced = self.files.position - self.files.synced
        if has_filled or (unsynced and (is_due or unsynced >= UNSYNCED_BYTES_MAX)):
            self._sync_behind()
        return self.group.is_relaxed or self.files.synced != self.files.position

    def sync(self) -> None:
        """Write and sync everything that was accepted so far; raises what went wrong."""
        with self.lock:
            self.check()
            group = self.group
            # Sharing a later group's sync would do as well, but it may never come.
            needs_group = bool(group.entries)
            if needs_group:
                group.sync = True
        if needs_group:
            self.commit(group)
            return
        with self.commit_lock:
            self.check()
            try:
                self.files.sync()
            except SyncFailedError as error:
                self._fail(Group(), error)
                raise

    def _sync_behind(self) -> None:
        """Sync what is written, while appends go on: no lock is held meanwhile."""
        with self.commit_lock:
            mark = self.files.mark()
        try:
            sync(mark.file)
        except SyncFailedError as error:
            with self.commit_lock:
                self._fail(Group(), error)  # the shard tells the next append
            return
        with self.commit_lock:
            self.files.note_synced(mark)

    def close(self, refusal: StratalogError) -> None:
        """Accept nothing more, and let the files go."""
        with self.commit_lock, self.lock:
            self.refusal = refusal
            self._close_group()  # whoever begins a batch in the next one is told
            self.files.close()

    def _lead(self, group: Group) -> None:
        try:
            self.commit_lock.acquire()
        except BaseException:
            # Interrupted while waiting: somebody else must lead, or the followers wait for ever.
            with self.lock:
                group.is_led = False
                self.relax(group, lazy=False)
            raise
        try:
            if not group.done:  # the group before may have failed and taken this one along
                self._commit(group)
        finally:
            self.commit_lock.release()

    def _commit(self, group: Group) -> None:
        with self.lock:
            self._close_group()
            self._in_flight = group
        try:
            self._write(group)
        except StratalogError as error:
            self._fail(group, error)
            return
        except BaseException:
            # Ctrl-C in the middle: everything below is repeatable, so finish first.
            try:
                self._write(group)
            except BaseException as error:
                self._fail(group, SyncFailedError(f"commit was interrupted: {error!r}"))
                raise
            self._in_flight = None
            group.finish(None)
            raise
        self._in_flight = None
        group.finish(None)

    def _close_group(self) -> Group:
        """Let nothing more into the open group, and open the next; called with the lock held."""
        group, self.group = self.group, Group()
        for entry in group.entries:
            if type(entry) is Pending:
                entry.topic.stop_gathering()
        return group

    def _write(self, group: Group) -> None:
        if group.encoded is None:
            encoded: list[Entry] = []
            for entry in group.entries:
                encoded += entry.encode() if isinstance(entry, Pending) else [entry]
            group.encoded = encoded
            self.commits += 1
            self.committed_entries += len(group.encoded)
        entries = group.encoded
        while (start := group.published) < len(entries):
            topic = entries[start].topic
            if topic is not None and topic.is_ephemeral:
                topic.publish_memory(entries[start])
                group.published = start + 1
                continue
            end = start + self.files.fit(entries, start)
            run = entries[start:end]
            for length, entry in enumerate(run):
                if entry.topic is not None and entry.topic.is_ephemeral:
                    run = run[:length]
                    break
            positions = self.files.write(run, sync=group.sync)
            group.published = start + len(run)
            for entry, position in zip(run, positions, strict=True):
                if entry.topic is not None:
                    entry.topic.publish(entry, self.files.number, position)

    def _fail(self, group: Group, error: StratalogError) -> None:
        """Nothing of the group, nor of the one behind it, is in the log."""
        is_clean = False
        if isinstance(error, DiskFullError):
            try:
                self.files.cut()
                is_clean = True
            except OSError:
                pass  # then nothing is certain any more, as after any other failure
        with self.lock:
            behind = self._close_group()
            self._in_flight = None
            if not is_clean:
                self.refusal = PoisonedError(
                    f"{self.files.directory} takes no more appends since a write failed: {error} "
                    "Close the store and open it again: it recovers everything acknowledged."
                )
            for failed in (group, behind):
                for entry in (failed.encoded or failed.entries)[failed.published :]:
                    if entry.topic is not None:
                        entry.topic.give_back()
            if group.is_relaxed or behind.is_relaxed:
                self._lost = error
        for failed in (group, behind):
            if not failed.done:
                failed.finish(error)


def again(error: StratalogError) -> StratalogError:
    """A copy to raise: one exception raised in many threads would mix up their tracebacks."""
    copy = type(error)(*error.args)
    copy.__cause__ = error.__cause__
    return copy
