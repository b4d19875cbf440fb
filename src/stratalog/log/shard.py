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
from functools import partial

from stratalog.errors import StratalogError, SyncFailedError
from stratalog.format.frame import HEADER_BYTES
from stratalog.log.failures import again, fail
from stratalog.log.files import LogFiles, sync_failed
from stratalog.log.future import AppendFuture, Audience
from stratalog.log.group import Entry, Gathered, Group, Pending, is_plain_run
from stratalog.log.interrupts import insist
from stratalog.log.joint import Joint

# An append that finds this much waiting commits it: bounds memory. Less would let go of the
# interpreter more often (512 KiB took a tenth longer), more would leave the processor's cache.
GROUP_BYTES_MAX = 1 << 20

# The ticker syncs once this much is written, whatever the time: a rotation, which has to wait for
# a sync of the whole file, then finds little left to do.
UNSYNCED_BYTES_MAX = 8 << 20


class Shard:
    """A log of its own: files, an open group, and one commit at a time."""

    def __init__(
        self, files: LogFiles, wake: Callable[[], None], post: Callable[[Audience], None]
    ) -> None:
        self.files = files
        self.lock = threading.Lock()
        self.commit_lock = threading.Lock()
        self.try_commit_lock = iter(partial(self.commit_lock.acquire, False), None)
        """Each step of it takes the lock if it is free, and says whether it did."""
        self.group = Group()
        self.alone = Group()
        """The group of an append that meets nobody: see the module of that name."""
        self.alone.sync = self.alone.done = True
        self.refusal: StratalogError | None = None
        """Why nothing more is accepted; None while all is well."""
        self.commits = 0
        self.committed_entries = 0
        self.in_flight: Group | None = None
        """The group that is being written, or that a frame of another shard is in."""
        self._wake = wake
        self._post = post
        self.untold: dict[Group, None] = {}
        """Groups that are done and have futures; whoever lets go of the commit lock tells."""
        self.lost: StratalogError | None = None
        """Why something is gone that was accepted: the next append is told."""

    # --- entering: the shard's lock is held -----------------------------------------------

    def check(self, *, tells_loss: bool = True) -> None:
        """Raise if nothing can be accepted, or if something was lost since: once, and to a user."""
        if tells_loss and self.lost is not None:
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

    def gather(self, changes: Gathered, *, sync: bool, lazy: bool) -> Group:
        """Put changes of a projection into the open group; called with the lock held."""
        group = self.group
        group.entries.append(changes)
        if sync:
            group.sync = True
        elif not group.is_acknowledged or group.is_lazy:
            self.relax(group, lazy=lazy, acknowledged=True)
        return group

    def relax(self, group: Group, *, lazy: bool, acknowledged: bool = False) -> None:
        """Leave a group to the ticker; called with the lock held."""
        # Before and behind: Ctrl-C in between must not leave a group that nobody comes for.
        self._wake()
        group.is_lazy = lazy and (group.is_lazy or not group.is_relaxed)
        group.is_relaxed = True
        group.is_acknowledged = group.is_acknowledged or acknowledged
        self._wake()

    def future(self, group: Group, offset: int) -> AppendFuture:
        """A future for an entry of the open group; called with the lock held."""
        if not group.is_relaxed or group.is_lazy:
            self.relax(group, lazy=False)
        group.post = self._post
        return AppendFuture(group, offset, self.finish)

    # --- committing: no lock is held ------------------------------------------------------

    def commit(self, group: Group) -> None:
        """Return once the group is as durable as it asked to be; raises what went wrong."""
        self.finish(group)
        if group.error is not None:
            raise again(group.error)

    def finish(self, group: Group) -> None:
        """Return once the outcome of the group is known, leading it if nobody does."""
        me = threading.get_ident()
        try:
            with self.lock:
                leads = group.leader in (0, me)
                if leads:
                    group.leader = me
            # Whoever leads it may have been interrupted, again and again, before it could say so.
            # Two that lead are no harm: the second finds it done.
            while not leads and not group.look():
                leads = group is self.group
            if leads:
                with self.commit_lock:
                    if not group.done:  # the group before may have failed and taken it along
                        self.lead(group)
        except BaseException:
            insist(self.abandon, group)
            raise
        self.tell()

    def settle_group(self, group: Group, error: StratalogError | None) -> None:
        """Make the outcome of a group known; may be repeated. The commit lock is held."""
        group.finish(error)
        if group.observed:
            self.untold[group] = None

    def tell(self) -> None:
        """Have those called back who look at futures."""
        for group in list(self.untold):
            if group.tell():
                self.untold.pop(group, None)
            else:
                self._wake()  # the ticker looks again

    def settle(self) -> None:
        """Make every append readable that was acknowledged without being written."""
        with self.lock:  # both at once: a group that is closed in between would be in neither
            in_flight, group = self.in_flight, self.group
        if in_flight is not None and (in_flight.is_relaxed or in_flight.is_publishing):
            in_flight.wait()
        if group.is_relaxed:
            self.finish(group)

    def tick(self, *, is_due: bool) -> bool:
        """Write what nobody waits for, and sync if that is due; returns whether more is left."""
        self.tell()  # what whoever should have done it was interrupted in
        group = self.group
        if group.is_relaxed and not group.leader and (is_due or not group.is_lazy):
            self.finish(group)
        if self.refusal is not None:
            return False
        has_filled = self.files.fill_ahead()
        unsynced = self.files.position - self.files.synced
        if has_filled or (unsynced and (is_due or unsynced >= UNSYNCED_BYTES_MAX)):
            self._sync_behind()
        return self.group.is_relaxed or self.files.synced != self.files.position

    def sync(self, then: Callable[[], None] | None = None, *, tells_loss: bool = True) -> None:
        """Write and sync everything that was accepted so far; raises what went wrong.

        `then` is called when all that was written is durable, and before anything else is.
        """
        with self.lock:
            self.check(tells_loss=tells_loss)
            group = self.group
            if group.entries:
                group.sync = True
        if group.entries:
            self.commit(group)
        # The group may have had nothing for the disk, or nothing at all: what groups before it
        # wrote is synced here, and if it has been already this does nothing.
        try:
            with self.commit_lock:
                self.check(tells_loss=tells_loss)
                self.sync_files()
                if then is not None:
                    then()
        finally:
            self.tell()

    def sync_files(self) -> None:
        """Make durable what is written; the commit lock is held."""
        self._or_fail(self.files.sync)

    def rotate(self) -> None:
        """Go on in a new file; the commit lock is held."""
        self._or_fail(self.files.rotate)

    def _or_fail(self, action: Callable[[], None]) -> None:
        try:
            action()
        except StratalogError as error:
            insist(fail, self, Group(), error)
            raise

    def _sync_behind(self) -> None:
        """Sync what is written, while appends go on: no lock is held meanwhile."""
        with self.commit_lock:
            mark = self.files.mark()
        try:
            mark.file.fdatasync()
        except OSError as error:
            with self.commit_lock:
                # The shard tells the next append.
                insist(fail, self, Group(), sync_failed(mark.file, error))
            self.tell()
            return
        with self.commit_lock:
            self.files.note_synced(mark)

    def close(self, refusal: StratalogError) -> None:
        """Accept nothing more, write what was accepted since the last sync, let the files go.

        They go also if that fails, which is raised then. May be repeated with the same refusal, if
        Ctrl-C came in between.
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
                self.close_group()  # whoever begins a batch in the next one is told
                self.files.close(trim=is_well and failure is None)
        self.tell()
        if failure is not None:
            raise again(failure)

    def lead(self, group: Group) -> None:
        """Commit a group; the commit lock is held, and not let go of before the outcome is known.

        If Ctrl-C comes again and again: the groups behind it must not be written before it.
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
        """Ctrl-C before a group of ours was closed: leave it to the ticker, or others would wait.

        Takes no commit lock: that may take as long as a sync, and be interrupted again.
        """
        with self.lock:
            if group is self.group and group.leader == threading.get_ident():
                group.leader = 0
                self.relax(group, lazy=False)

    def commit_group(self, group: Group) -> None:
        """Close a group, write it, publish it; the commit lock is held.

        Every step may be repeated, so that Ctrl-C in the middle of one does not leave it
        half-done: it is done again, and the interrupt is raised at the end.
        """
        if not self.alone.done and group is not self.alone:
            self.commit_group(self.alone)  # interrupted more often than anybody could mend
            if group.done:  # it failed, and took this one along
                return
        interrupt: BaseException | None = None
        try:
            if group.failure is None:
                for step in (self._close, self._encode, self._write, self._settled):
                    interrupt = insist(step, group) or interrupt
        except StratalogError as error:
            group.failure = error  # before anything is called: what failed is not tried again
        if group.failure is not None:
            interrupt = insist(fail, self, group, group.failure) or interrupt
        if interrupt is not None:
            raise interrupt

    def _close(self, group: Group) -> None:
        with self.lock:
            self.in_flight = group
            if self.group is group:
                self.close_group()

    def close_group(self) -> Group:
        """Let nothing more into the open group, and open the next; called with the lock held."""
        group, following = self.group, Group()
        for entry in group.entries:
            if type(entry) is Pending:
                entry.topic.stop_gathering()
        self.group = following
        return group

    def _encode(self, group: Group) -> None:
        if is_plain_run(group.entries):
            group.encoded = group.entries  # type: ignore[assignment]  # a list of entries it is
            group.is_plain = True
            return
        encoded: list[Entry] = []
        for entry in group.entries:
            if not isinstance(entry, Entry):
                encoded += entry.encode()
                continue
            if isinstance(entry, Joint):
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
                # No function is called from here to the last of these: Ctrl-C comes before all
                # of it, and the frames are written again in the same place, or after.
                files.position = end
                files.synced = synced
                group.position = position
                group.written = written
            self._publish(group, start)
            group.published = group.written

    def _run(self, group: Group, start: int) -> list[Entry]:
        """Entries from `start` on that go to the same place: into one file, or into memory."""
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
            if isinstance(entry, Joint):
                group.is_publishing = True  # whoever sees one of its topics waits for the others
                entry.publish(self.files.inner_number, position)
            elif entry.topic is None:
                if entry.on_commit is not None:
                    entry.on_commit()
            elif entry.is_in_memory:
                entry.topic.publish_memory(entry)
            else:
                entry.topic.publish(entry, self.files.number, position)
            position += HEADER_BYTES + len(entry.body)

    def _settled(self, group: Group) -> None:
        self.in_flight = None
        self.commits += 1
        self.committed_entries += len(group.encoded)
        self.settle_group(group, None)
        group.entries = group.encoded = []  # a future may hold the group for long
