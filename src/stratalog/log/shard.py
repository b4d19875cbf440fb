"""One shard: its open group, its commits, its files.

Group commit by leader and followers, in the callers' own threads. An append enters the open group.
The first thread that has to wait leads it: it takes the commit lock (which waits for the previous
group), closes the group, writes it, syncs it if an append asked for that, publishes it and opens
the gate. The others wait at the gate of their group. Appends that no thread waits for are led by
the ticker, by a reader that wants to see them, or by the append that finds the group full.

Locks, in the order they are taken: `commit_lock` (writing), then `lock` (the open group).

Invariants:
- Groups are written and published in the order they were closed; nothing is readable before.
- A failed write or sync fails the group and the open one after it, gives their offsets back and
poisons the shard, unless the disk was full and no trace is left.
- Offsets that callers know are not given back: they become a gap, which the log records before any
later frame.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from stratalog.errors import OutOfMemoryError, StratalogError, SyncFailedError
from stratalog.format.frame import HEADER_BYTES
from stratalog.log.commit_failures import again, fail
from stratalog.log.commit_group import (
    RELAXED,
    SYNCED,
    Entry,
    Gathered,
    Group,
    Pending,
    is_plain_run,
)
from stratalog.log.files import LogFiles, sync_failed
from stratalog.log.future import AppendFuture, Audience
from stratalog.log.interrupts import insist
from stratalog.log.joint import JointFrame

if TYPE_CHECKING:
    from stratalog.log.topic import TopicLog

# The ticker syncs once this much is written, whatever the time: a rotation, which has to sync the
# whole file, then finds little left to do.
UNSYNCED_BYTES_MAX = 8 << 20


class Shard:
    """A shard's log: files, an open group, and one commit at a time."""

    def __init__(
        self, files: LogFiles, wake: Callable[[], None], post: Callable[[Audience], None]
    ) -> None:
        self.files = files
        self.lock = threading.Lock()
        self.commit_lock = threading.Lock()
        self.try_commit_lock = iter(partial(self.commit_lock.acquire, False), None)
        """Each step takes the lock if it is free, and returns whether it did."""
        self.group = Group()
        self.alone = Group()
        """The group of an append that meets no other thread: see `append_synced`."""
        self.alone.sync = self.alone.done = True
        self.refusal: StratalogError | None = None
        """The error for every call once nothing is accepted; None until then."""
        self.commits = 0
        self.committed_entries = 0
        self.in_flight: Group | None = None
        """The group that is being written, or that a frame of another shard is in."""
        self._wake = wake
        self._post = post
        self.untold: dict[Group, None] = {}
        """Groups that are done and have futures; notified when the commit lock is released."""
        self.lost: StratalogError | None = None
        """Why accepted appends are lost: raised to the next append."""
        self.owing: dict[TopicLog, None] = {}
        """Topics with lost offsets that callers know: the next commit logs these gaps first."""

    # --- entering: the shard's lock is held -----------------------------------------------

    def check(self, *, reports_loss: bool = True) -> None:
        """Raise if the shard is closed or poisoned, or once to a user if appends were lost."""
        if reports_loss and self.lost is not None:
            lost, self.lost = self.lost, None
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

    def gather(
        self, changes: Gathered, *, sync: bool, lazy: bool, acknowledged: bool = True
    ) -> Group:
        """Put changes of a projection into the open group; called with the lock held."""
        group = self.group
        group.entries.append(changes)
        if sync:
            group.sync = True
        elif not group.is_acknowledged or group.is_lazy:
            self.relax(group, lazy=lazy, acknowledged=acknowledged)
        return group

    def ask(self, group: Group, rank: int) -> None:
        """Note what a class of records demands of a group; called with the lock held."""
        if rank == SYNCED:
            group.sync = True
        elif not group.is_acknowledged or group.is_lazy:
            self.relax(group, lazy=rank < RELAXED, acknowledged=True)

    def relax(self, group: Group, *, lazy: bool, acknowledged: bool = False) -> None:
        """Leave a group to the ticker; called with the lock held."""
        # Woken twice: Ctrl-C in between must not leave a group that no thread commits.
        self._wake()
        group.is_lazy = lazy and (group.is_lazy or not group.is_relaxed)
        group.is_relaxed = True
        group.is_acknowledged = group.is_acknowledged or acknowledged
        self._wake()

    def future(self, group: Group, offset: int) -> AppendFuture:
        """Build a future for an entry of a group that was left to the ticker."""
        group.post = self._post
        return AppendFuture(group, offset, self.finish)

    # --- committing: no lock is held ------------------------------------------------------

    def commit(self, group: Group) -> None:
        """Return once the group is as durable as requested; raises its error."""
        self.finish(group)
        if group.error is not None:
            raise again(group.error)

    def wait(self, group: Group, rank: int) -> None:
        """Return once a group is as durable as a class promises; raises its error."""
        if group.is_awaited(rank):
            self.commit(group)

    def finish(self, group: Group) -> None:
        """Return once the outcome of the group is known, leading it if no other thread does."""
        me = threading.get_ident()
        try:
            with self.lock:
                leads = group.leader in (0, me)
                if leads:
                    group.leader = me
            # Its leader may have been interrupted, again and again, before it could report. Two
            # leaders are harmless: the second finds it done.
            if leads or self._await(group):
                with self.commit_lock:
                    if not group.done:  # unless the previous group failed, and this one with it
                        self.lead(group)
        except BaseException:
            insist(self.abandon, group)
            raise
        self.notify()

    def _await(self, group: Group) -> bool:
        """Wait for another thread's commit of a group; returns whether this one has to lead it."""
        while not group.look():
            if group is self.group:
                return True
        return False

    def resolve_group(self, group: Group, error: StratalogError | None) -> None:
        """Set the outcome of a group; idempotent. The commit lock is held."""
        group.finish(error)
        if group.observed:
            self.untold[group] = None

    def notify(self) -> None:
        """Notify the waiters of futures that are done."""
        for group in list(self.untold):
            if group.notify():
                self.untold.pop(group, None)
            else:
                self._wake()  # the ticker tries again

    def flush(self) -> None:
        """Make every append readable that was acknowledged without being written."""
        with self.lock:  # both at once: a group closed in between would be missed
            in_flight, group = self.in_flight, self.group
        if in_flight is not None and (in_flight.is_relaxed or in_flight.is_publishing):
            in_flight.wait()
        if group.is_relaxed or (self.owing and self.refusal is None):
            self.finish(group)

    def tick(self, *, is_due: bool) -> bool:
        """Write what no thread waits for, and sync if due; returns whether more is left."""
        self.notify()  # in case the thread that should have was interrupted
        group = self.group
        if group.is_relaxed and not group.leader and (is_due or not group.is_lazy):
            self.finish(group)
        if self.refusal is not None:
            return False
        has_filled = self.files.fill_ahead()
        unsynced = self.files.position - self.files.synced
        if has_filled or (unsynced and (is_due or unsynced >= UNSYNCED_BYTES_MAX)):
            self._sync_written()
        return self.group.is_relaxed or self.files.synced != self.files.position

    def sync(self, then: Callable[[], None] | None = None, *, reports_loss: bool = True) -> None:
        """Write and sync everything that was accepted so far; raises the error.

        `then` is called when everything written is durable, before anything else becomes durable.
        """
        with self.lock:
            self.check(reports_loss=reports_loss)
            group = self.group
            has_more = bool(group.entries or self.owing)
            if has_more:
                group.sync = True
        if has_more:
            self.commit(group)
        # The group may have held nothing for the disk: what earlier groups wrote is synced here,
        # which does nothing if it is synced already.
        try:
            with self.commit_lock:
                self.check(reports_loss=reports_loss)
                self.sync_files()
                if then is not None:
                    then()
        finally:
            self.notify()

    def sync_files(self) -> None:
        """Sync what is written; the commit lock is held."""
        self._or_fail(self.files.sync)

    def rotate(self) -> None:
        """Continue in a new file; the commit lock is held."""
        self._or_fail(self.files.rotate)

    def _or_fail(self, action: Callable[[], None]) -> None:
        try:
            action()
        except StratalogError as error:
            insist(fail, self, Group(), error)
            raise

    def _sync_written(self) -> None:
        """Sync what is written, while appends go on: no lock is held meanwhile."""
        with self.commit_lock:
            mark = self.files.mark()
        try:
            mark.file.fdatasync()
        except OSError as error:
            with self.commit_lock:
                # The shard raises it to the next append.
                insist(fail, self, Group(), sync_failed(mark.file, error))
            self.notify()
            return
        with self.commit_lock:
            self.files.note_synced(mark)

    def close(self, refusal: StratalogError) -> None:
        """Accept nothing more, write what was accepted since the last sync, close the files.

        A failure is raised after the files are closed. Idempotent with the same refusal, in case
        Ctrl-C interrupts it.
        """
        failure: StratalogError | None = None
        with self.commit_lock:
            with self.lock:
                is_well = self.refusal is None or self.refusal is refusal
                self.refusal = refusal
                group = self.group
                group.sync = True
            if is_well:
                self.commit_group(group)
                failure = group.error
                try:
                    self.files.sync()
                except SyncFailedError as error:
                    failure = failure or error
            with self.lock:
                self.refusal = refusal
                self.close_group()  # the next group refuses
                self.files.close(trim=is_well and failure is None)
        self.notify()
        if failure is not None:
            raise again(failure)

    def lead(self, group: Group) -> None:
        """Commit a group; the commit lock is held, and kept until the outcome is known.

        This holds even under repeated Ctrl-C: later groups must not be written before it.
        """
        try:
            self.commit_group(group)
        except BaseException:
            if not group.done and group is not self.group:
                try:
                    self.commit_group(group)
                except BaseException:
                    insist(fail, self, group, SyncFailedError("a commit was interrupted half-way."))
                    raise
            raise

    def abandon(self, group: Group) -> None:
        """Leave a group to the ticker that Ctrl-C kept this thread from closing; others may wait.

        Takes no commit lock: that could take as long as a sync, and be interrupted again.
        """
        with self.lock:
            if group is self.group and group.leader == threading.get_ident():
                group.leader = 0
                self.relax(group, lazy=False)

    def commit_group(self, group: Group) -> None:
        """Close a group, write it, publish it; the commit lock is held.

        Every step is idempotent, so that Ctrl-C in the middle of one does not leave it half-done:
        it is repeated, and the interrupt is raised at the end.
        """
        if not self.alone.done and group is not self.alone:
            self.commit_group(self.alone)  # left by repeated interrupts
            if group.done:  # an earlier group failed, and this one with it
                return
        interrupt: BaseException | None = None
        try:
            if group.failure is None:
                for step in (self._close, self._encode, self._write, self._finish_commit):
                    interrupt = insist(step, group) or interrupt
        except StratalogError as error:
            group.failure = error  # before any call: a failed group is not tried again
        except MemoryError:
            group.failure = self._out_of_memory(group)
        if group.failure is not None:
            interrupt = insist(fail, self, group, group.failure) or interrupt
        if interrupt is not None:
            raise interrupt

    def _out_of_memory(self, group: Group) -> StratalogError:
        if group.written != group.published:  # it is in the log, and not all readers know
            return SyncFailedError("memory ran out after a commit was written.")
        return OutOfMemoryError(
            f"{self.files.directory}: no memory to commit {len(group.entries)} frames. Nothing of "
            "them was kept; free some memory, and append again."
        )

    def _close(self, group: Group) -> None:
        with self.lock:
            self.in_flight = group
            if self.group is group:
                self.close_group()

    def close_group(self) -> Group:
        """Close the open group, and open the next; called with the lock held."""
        group, following = self.group, Group()
        for entry in group.entries:
            if type(entry) is Pending:
                entry.topic.pending = None
        self.group = following
        return group

    def _encode(self, group: Group) -> None:
        if group.written:
            return  # an interrupt came after this, and the frames are counted from the first
        if not self.owing and is_plain_run(group.entries):
            group.encoded = group.entries  # type: ignore[assignment]  # all of them are entries
            group.is_plain = True
            return
        # A gap of a topic precedes the topic's later frames in the log, too.
        encoded = [topic.lose() for topic in self.owing]
        for entry in group.entries:
            if not isinstance(entry, Entry):
                encoded += entry.encode()
                continue
            if isinstance(entry, JointFrame):
                entry.prepare()
            encoded.append(entry)
        group.encoded = encoded

    def _write(self, group: Group) -> None:
        files = self.files
        while (start := group.published) < len(group.encoded):
            if group.written == start:
                run = self._run(group, start)
                written = start + len(run)
                position = end = files.position
                synced = files.synced
                if not run[0].is_in_memory:
                    end = files.write(run, sync=group.sync)
                    synced = end if group.sync else synced
                # Ctrl-C before this has the frames written again, in the same place.
                # Uninterruptible.
                files.position = end
                files.synced = synced
                group.position = position
                group.written = written
                # Interruptible.
            self._publish(group, start)
            group.published = group.written

    def _run(self, group: Group, start: int) -> list[Entry]:
        """Return the entries from `start` on with one destination: a file, or memory."""
        encoded = group.encoded
        in_memory = encoded[start].is_in_memory
        end = len(encoded) if in_memory else start + self.files.fit(encoded, start)
        if group.is_plain:
            return encoded[start:end]
        run = []
        for entry in encoded[start:end]:
            if entry.is_in_memory != in_memory:
                break
            run.append(entry)
        return run

    def _publish(self, group: Group, start: int) -> None:
        position = group.position
        entries = group.encoded[start : group.written]
        if group.is_plain:
            topic, last = entries[0].topic, entries[-1]
            assert topic is not None
            topic.index.extend(entries, self.files.number, position)
            topic.advance(last.base_offset + last.count)
            return
        for entry in entries:
            if isinstance(entry, JointFrame):
                group.is_publishing = True  # a reader of one of its topics waits for the others
                entry.publish(self.files.inner_number, position)
            elif entry.topic is None:
                if entry.on_commit is not None:
                    entry.on_commit()
            elif entry.is_in_memory:
                entry.topic.publish_memory(entry)
            else:
                entry.topic.publish(entry, self.files.number, position)
            position += HEADER_BYTES + len(entry.body)

    def _finish_commit(self, group: Group) -> None:
        self.in_flight = None
        self.commits += 1
        self.committed_entries += len(group.encoded)
        self.resolve_group(group, None)
        group.entries = group.encoded = []  # a future may keep the group for long
