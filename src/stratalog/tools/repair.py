"""Repair: a damaged directory becomes a store again, and what is lost becomes explicit.

The order of the steps is what makes a repair that was cut short one that can be finished. What is
given up is written down (`LOST`, `FLOOR` and `TOPIC` frames, at the end of the log) while the
damage is still there to tell what it was; then damaged places of the log are bridged, then
segments are written again, then snapshots. Each step leaves nothing to do for itself.

Invariants:
- Bytes are taken out of use only once a copy of them is durable, in `quarantine/`.
- A dry run is the same code on top of a file system that keeps every change to itself.
"""

from __future__ import annotations

import os
import secrets
import time

from pyroaring import BitMap64

from stratalog.arguments import check_path
from stratalog.clock import Clock, SystemClock
from stratalog.errors import CorruptionError, NotAStoreError
from stratalog.format.control import TopicBody, encode_deletes, encode_floor, encode_tier
from stratalog.format.frame import FrameType
from stratalog.format.names import (
    lock_path,
    log_file_path,
    shard_path,
    snapshot_path,
    snapshots_path,
    store_path,
    store_temp_path,
)
from stratalog.format.segment import Summary
from stratalog.format.snapshot import CatalogState
from stratalog.format.store import VERSION, StoreFile, encode_store
from stratalog.fs import FileSystem, Lock, PosixFileSystem
from stratalog.fs.cold import ColdStore, open_cold
from stratalog.fs.guard import GuardedFs
from stratalog.fs.holder import holder
from stratalog.log.log import Control, Log
from stratalog.log.topic import TopicLog
from stratalog.options import StoreOptions
from stratalog.state.identity import read_store_file
from stratalog.state.recovery import Replay
from stratalog.state.router import control
from stratalog.state.snapshot import capture, capture_groups, capture_lakes, object_names
from stratalog.tools.audit import Audit, audit, is_store
from stratalog.tools.bridge import bridge, extend
from stratalog.tools.cold import ColdDepth, check_depth, find_in_cold, look_at_cold
from stratalog.tools.damage import LogDamage, contents
from stratalog.tools.offsets import new_offsets, ranges_of
from stratalog.tools.overlay import OverlayFs
from stratalog.tools.places import is_directory, put_back
from stratalog.tools.quarantine import Quarantine
from stratalog.tools.report import Action, Progress, Report, Tally
from stratalog.tools.rewrite import Archive, Place, Rewrite, write_segment
from stratalog.tools.topics import Range, TopicAudit
from stratalog.tools.verify import estimate


def repair(
    path: str | os.PathLike[str],
    *,
    dry_run: bool = False,
    cold: str | None = None,
    cold_depth: ColdDepth = "contents",
    progress: Progress | None = None,
    fs: FileSystem | None = None,
    clock: Clock | None = None,
) -> Report:
    """Make a damaged store whole again; what is lost becomes explicit gaps.

    Takes the writer's lock: raises `LockedError` while a writer is open. `dry_run=True` says what
    would be done, and changes nothing. `cold` is where its cold segments are: what is missing here
    is looked for there before it is given up, and what is there is judged as `verify` judges it.
    """
    check_depth(cold_depth)
    begin = time.perf_counter()
    root = os.path.abspath(check_path(path))
    files = PosixFileSystem() if fs is None else fs
    names = files.listdir(root)
    if not is_store(files, root):
        raise NotAStoreError(f"{root} is not a Stratalog store: check the path")
    lock: Lock | None = None
    store: ColdStore | None = None
    if "lock" in names or not dry_run:
        lock = files.lock(lock_path(root), "" if dry_run else holder())
    try:
        guarded = files if lock is None else GuardedFs(files, lock)
        target = OverlayFs(files) if dry_run else guarded
        store = None if cold is None else open_cold(cold, files)
        work = _Repair(
            target, root, progress, SystemClock() if clock is None else clock, store, cold_depth
        )
        work.run()
    finally:
        if store is not None:
            store.close()
        if lock is not None:
            lock.close()
    left = work.left if work.actions else []
    return Report(
        path=root,
        ok=not work.left,
        problems=work.problems,
        actions=work.actions,
        notes=[*work.found.notes, *(f"still wrong: {problem}" for problem in left)],
        counts=work.tally.counts(),
        duration=time.perf_counter() - begin,
        dry_run=dry_run,
    )


class _Repair:
    def __init__(
        self,
        fs: FileSystem,
        root: str,
        progress: Progress | None,
        clock: Clock,
        cold: ColdStore | None,
        cold_depth: ColdDepth,
    ) -> None:
        self.fs = fs
        self.root = root
        self.clock = clock
        self.actions: list[Action] = []
        self.quarantine = Quarantine(fs, root)
        self.tally = Tally(progress, estimate(fs, root))
        self.archive: Archive | None = None
        self.cold = cold
        self.cold_depth = cold_depth
        self.in_cold: list[tuple[TopicAudit, Summary, str]] = []
        self.found = self._audit(self.tally)
        self.problems = self.left = self.found.problems

    def _audit(self, tally: Tally) -> Audit:
        found = audit(self.fs, self.root, tally)
        look_at_cold(found, self.cold, self.cold_depth)
        return found

    def act(self, kind: str, path: str, message: str, lost: str = "", **place: object) -> None:
        self.actions.append(Action(kind, path, message, lost, **place))  # type: ignore[arg-type]

    def run(self) -> None:
        """Do what there is to do, in the order that can be cut short anywhere."""
        if not self.found.problems:
            return
        is_made = self._make_store_file()
        while self._put_back() or is_made:
            self.found = audit(self.fs, self.root, self.tally)
            is_made = False
        if self._make_log_files():
            self.found = self._audit(self.tally)
        found = self.found
        if any(problem.repair.startswith("nothing: this is") for problem in found.problems):
            raise CorruptionError(
                f"{self.root} cannot be repaired: {found.problems[-1].message}. Nothing was lost "
                "by trying; restore the log from a copy."
            )
        rewrites: list[Rewrite] = []
        lost: list[tuple[TopicAudit, list[Range]]] = []
        for one in found.topics:
            some, ranges = self._plan(one)
            rewrites += some
            lost.append((one, ranges))
        self._write_down(lost)
        for damage in found.damages:
            if not damage.is_cut:
                self._bridge(damage)
        for rewrite in rewrites:
            self._rewrite(rewrite)
        for one in found.topics:
            for path in one.strays:
                kept = self._move_away(path)
                self.act("segment", path, f"moved to {kept}: nothing needs it", topic=one.name)
        self._mend_snapshots()
        if self.actions:
            self.left = self._audit(Tally()).problems

    # --- what has to be there -------------------------------------------------------------

    def _make_store_file(self) -> bool:
        """Make the store file again if it cannot be used; returns whether that was so."""
        found = self.found
        if found.store_file is not None:
            return False
        path, temp = store_path(self.root), store_temp_path(self.root)
        kept = ""
        if os.path.basename(path) in self.fs.listdir(self.root):
            kept = f"; the damaged one is kept as {self.quarantine.keep_file(path, 'store.bin')}"
        identity = found.identity or secrets.token_bytes(16)
        # As its log is, which is not bound to an identity that nothing tells.
        is_bound = found.identity is None or bool(found.replay.reader.identity)
        version = VERSION if is_bound else 1
        self.fs.unlink(temp)
        file = self.fs.open(temp, "create")
        try:
            file.pwrite([encode_store(StoreFile(identity, self.clock.time_ns(), version))], 0)
            file.fdatasync()
        finally:
            file.close()
        self.fs.rename(temp, path)
        self.fs.sync_dir(self.root)
        known = "that all else has" if found.identity else "a new one"
        self.act(
            "store", path, f"made again, with the identity {known}{kept}",
            "when the store was created" + ("" if found.identity else ", and its identity"),
        )  # fmt: skip
        return True

    def _put_back(self) -> bool:
        """Give files the names that they should have; returns whether there was anything to do."""
        misplaced = self.found.misplaced
        # What has to make room first: another file may get its name.
        for one in misplaced:
            if one.target is None:
                kept = self._move_away(one.path)
                lost = "what the file in its place held" if one.is_log else ""
                self.act("misplaced", one.path, f"{one.message}: moved to {kept}", lost)
        put_back(self.fs, misplaced)
        for one in misplaced:
            if one.target is not None:
                self.act("misplaced", one.path, f"{one.message}: it is {one.target} again")
        return bool(misplaced)

    def _move_away(self, path: str) -> str:
        """Take a file out of use; returns where it is kept."""
        directory, name = os.path.split(path)
        name = f"{os.path.basename(directory)}-{name}"
        if is_directory(self.fs, path):
            return self.quarantine.move(path, name)
        kept = self.quarantine.keep_file(path, name)
        self.fs.unlink(path)
        self.fs.sync_dir(directory)
        return kept

    def _make_log_files(self) -> bool:
        """Give shards a file to go on in; returns whether there was anything to do."""
        found = self.found
        cut = [damage for damage in found.damages if damage.is_cut]
        for number, lsn in found.empty_shards.items():
            directory = shard_path(self.root, number)
            path = log_file_path(directory, lsn)
            self.fs.makedirs(directory)
            file = self.fs.open(path, "create")
            file.fdatasync()
            file.close()
            self.fs.sync_dir(directory)
            self.act(
                "log-missing", path, "an empty log file takes the place of those that are gone",
                "all that the shard held since the snapshot, however much that was",
            )  # fmt: skip
        for damage in cut:
            extend(self.fs, damage)
            self.act(
                "log", damage.path, f"made {damage.end} bytes long again, with zeros that nothing "
                "reads: a snapshot has what was there", "what came after that, if anything did",
                position=damage.start,
            )  # fmt: skip
        return bool(found.empty_shards or cut)

    # --- what is lost ---------------------------------------------------------------------

    def _plan(self, one: TopicAudit) -> tuple[list[Rewrite], list[Range]]:
        """Which segments of a topic to write again, and which offsets to give up."""
        rewrites: list[Rewrite] = []
        lost: list[Range] = list(one.holes)
        if one.tail is not None:
            lost.append(one.tail)
        for check in [*one.checks, *one.orphans]:
            if check.is_good and check not in one.orphans:
                continue
            rewrite = Rewrite(one.topic, check.first, check.end, check)
            for bad in check.bad:
                places, gone = self._in_log(one.topic, bad.first, bad.last)
                rewrite.places += places
                lost += gone
            rewrites.append(rewrite)
        for first, last in one.missing:
            if self.cold is not None:
                identity = self.found.identity
                for summary, name in find_in_cold(self.cold, identity, one.topic.id, first, last):
                    self.in_cold.append((one, summary, name))
                    first = summary.end_offset
            places, gone = self._in_log(one.topic, first, last)
            lost += gone
            if places:
                rewrites.append(Rewrite(one.topic, first, last + 1, None, places))
        return rewrites, sorted(lost)

    def _in_log(
        self, topic: TopicLog, first: int, last: int
    ) -> tuple[list[tuple[Place, Range]], list[Range]]:
        """Split some offsets into what the log still has of them and what it does not."""
        if first > last:
            return [], []
        if self.archive is None:
            self.archive = Archive(self.fs, self.root, self.found.replay)
        return self.archive.find(topic.id, first, last)

    def _write_down(self, lost: list[tuple[TopicAudit, list[Range]]]) -> None:
        """Put what is given up into the log, durably, and cut torn tails off."""
        found = self.found
        unnamed = [one for one in found.topics if one.topic.version < 0]
        floors = [one for one in found.topics if one.floor]
        given_up = [(one, new) for one, ranges in lost if (new := new_offsets(one.topic, ranges))]
        if not (unnamed or floors or given_up or self.in_cold or found.torn):
            return
        self._keep_torn()
        log = self._open_log()
        try:
            for one in unnamed:
                self._name(log, one)
            for one in floors:
                body = encode_floor(one.floor, "damaged")
                log.attach(one.topic)
                log.write([control(one.topic, FrameType.FLOOR, one.floor, body)])
                self.act(
                    "offsets", one.topic.history.directory, "written down as gone, in a FLOOR "
                    "frame", "whatever they were: evicted, deleted or damaged", topic=one.name,
                    first_offset=0, last_offset=one.floor - 1,
                )  # fmt: skip
            for one, summary, name in self.in_cold:
                self._point_to_cold(log, one, summary, name)
            for one, offsets in given_up:
                self._give_up(log, one, offsets)
        finally:
            log.close()
            found.replay.reader.close()

    def _open_log(self) -> Log:
        replay = self.found.replay
        given = {"shards": max(replay.scanners, default=0) + 1, "disk_reserve_bytes": 0}
        options = StoreOptions.build(given, {})
        return Log(self.fs, self.root, options, self.clock, replay.reader, replay.scanners)

    def _keep_torn(self) -> None:
        for torn in self.found.torn:
            shard = os.path.basename(os.path.dirname(torn.path))
            file = self.fs.open(torn.path, "read")
            try:
                end = torn.position + len(file.pread(torn.bytes, torn.position).rstrip(b"\0"))
                name = f"{shard}-{os.path.basename(torn.path)}-{torn.position}.bin"
                kept = self.quarantine.keep(file, torn.position, end, name)
            finally:
                file.close()
            self.act(
                "torn-tail", torn.path, f"cut {torn.bytes} bytes off, kept as {kept}",
                "appends that were not acknowledged, or the newest record", position=torn.position,
            )  # fmt: skip

    def _name(self, log: Log, one: TopicAudit) -> None:
        topic = one.topic
        name = f"recovered-{topic.id}"
        while any(other.name == name for other in self.found.replay.topics.values()):
            name += "-again"
        topic.define(TopicBody(name, "topic", self.clock.time_ns(), {}))
        log.attach(topic)
        log.write_topic(topic, lambda named: None)  # it is known, by its id
        self.act(
            "topic-name", topic.history.directory, f"topic {topic.id} is called {name!r} from now "
            "on", "its name and its options", topic=name,
        )  # fmt: skip

    def _give_up(self, log: Log, one: TopicAudit, offsets: BitMap64) -> None:
        log.attach(one.topic)
        controls: list[Control] = [
            control(one.topic, FrameType.LOST, 0, body)
            for body in encode_deletes(offsets, one.topic.batch_bytes_max)
        ]
        log.write(controls)
        for first, last in ranges_of(offsets):
            self.act(
                "offsets", one.topic.history.directory, "given up, in a LOST frame: readers get a "
                "gap", f"{last - first + 1} records", topic=one.name, first_offset=first,
                last_offset=last,
            )  # fmt: skip

    def _point_to_cold(self, log: Log, one: TopicAudit, summary: Summary, name: str) -> None:
        assert self.cold is not None
        log.attach(one.topic)
        body = encode_tier(summary, self.cold.location, name)
        log.write([control(one.topic, FrameType.TIER, summary.first_offset, body)])
        self.act(
            "segment-missing", one.topic.history.directory, "found in the cold store, and read "
            "from there from now on", topic=one.name, first_offset=summary.first_offset,
            last_offset=summary.end_offset - 1,
        )  # fmt: skip

    # --- files ----------------------------------------------------------------------------

    def _bridge(self, damage: LogDamage) -> None:
        shard = os.path.basename(os.path.dirname(damage.path))
        name = f"{shard}-{os.path.basename(damage.path)}-{damage.start}.bin"
        file = self.fs.open(damage.path, "read")
        try:
            kept = self.quarantine.keep(file, damage.start, damage.end, name)
        finally:
            file.close()
        bridge(self.fs, damage)
        self.act(
            "log", damage.path,
            f"{damage.end - damage.start} bytes are skipped from now on, kept as {kept}",
            contents(damage.suspects), position=damage.start,
        )  # fmt: skip

    def _rewrite(self, rewrite: Rewrite) -> None:
        check = rewrite.check
        kept = ""
        if check is not None and (check.bad or check.is_open):
            name = f"{rewrite.topic.id:016x}-{os.path.basename(check.path)}"
            kept = f"; the old file is kept as {self.quarantine.keep_file(check.path, name)}"
        path = write_segment(self.fs, rewrite, self.clock.time_ns())
        batches = 0 if check is None else len(check.pieces)
        # The log does not reach an orphan: it is older, or gone, and nothing says how far it went.
        is_orphan = any(check is orphan for one in self.found.topics for orphan in one.orphans)
        lost = "what came after it in the log, of this and other topics, if anything did"
        self.act(
            "segment", path,
            f"written again from {batches} batches of its own and {len(rewrite.places)} frames of "
            f"the log{kept}", lost if is_orphan else "", topic=rewrite.topic.name,
            first_offset=rewrite.first, last_offset=rewrite.end - 1,
        )  # fmt: skip

    def _mend_snapshots(self) -> None:
        found = self.found
        kept = {}
        for number in found.bad_snapshots:
            path = snapshot_path(self.root, number)
            kept[path] = self.quarantine.keep_file(path, os.path.basename(path))
        if found.is_rebuilt or found.has_new_starts:
            self._write_snapshots()
        for path, copy in kept.items():
            self.fs.unlink(path)
            lost = "names, options, deletes, what groups have consumed, and where cold segments are"
            self.act("snapshot", path, f"moved to {copy}", lost if found.is_rebuilt else "")
        if kept:
            self.fs.sync_dir(snapshots_path(self.root))

    def _write_snapshots(self) -> None:
        """Two, so that one that is damaged later costs nothing."""
        found = self.found
        assert found.replay.snapshot is not None
        replay = Replay(self.fs, self.root, read_store_file(self.fs, self.root))
        replay.snapshot = found.replay.snapshot
        replay.advance()
        catalog = CatalogState(
            next_topic_id=replay.next_topic_id,
            epochs=replay.epochs,
            cold=replay.pool.cold_location,
            topics=[capture(topic) for topic in replay.topics.values()],
            dropped=sorted(replay.dropped),
            objects=object_names(replay.topics.values()),
        )
        more, log = capture_groups(replay.topics.values()), found.replay.snapshot.log
        for _ in range(2):
            replay.snapshots.write(
                log,
                catalog,
                self.clock.time_ns(),
                *more,
                routes=replay.routes.capture(),
                lakes=capture_lakes(replay.topics.values()),
                schedules=replay.schedules.capture(),
            )
        replay.reader.close()
        replay.pool.close()
        self.act(
            "snapshot", snapshots_path(self.root), "new snapshots begin where the log begins now"
        )
