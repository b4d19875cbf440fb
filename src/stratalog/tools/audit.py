"""The audit of a directory: finds what is wrong once, for verify to report and repair to mend.

Reads everything that counts: the store file, every snapshot, the log from the snapshot's position
on, every byte of every segment. Changes nothing, takes no lock.

A writer beside it may move files while they are looked at: `FileNotFoundError` then means that one
has to look again.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, field
from itertools import islice

import msgspec

from stratalog.errors import CorruptionError, FormatError, NotAStoreError, UnsupportedVersionError
from stratalog.format.ends import End
from stratalog.format.frame import FrameType, log_seed
from stratalog.format.names import (
    incoming_path,
    log_file_path,
    log_path,
    parse_numbered,
    parse_shard,
    parse_topic,
    shard_number,
    shard_path,
    snapshot_path,
    snapshots_path,
    store_path,
    topics_path,
)
from stratalog.format.segment import UNBOUND
from stratalog.format.snapshot import CatalogState, LogState, Snapshot
from stratalog.format.store import STORE_BYTES, VERSION, StoreFile, decode_store
from stratalog.fs import FileSystem
from stratalog.log.ends import read_ends
from stratalog.log.scan import TornTail, frames
from stratalog.log.topic import TopicLog
from stratalog.state.owner import has_log, owner_of, read_all
from stratalog.state.recovery import Replay
from stratalog.tools.checks import Checker, LocalChecker
from stratalog.tools.damage import LogDamage, Suspect, find_suspects
from stratalog.tools.places import (
    Misplaced,
    find_misplaced,
    without_directories,
)
from stratalog.tools.report import Problem, Tally
from stratalog.tools.topics import TopicAudit, audit_topic, plan_topic
from stratalog.upkeep.adopt import rejected

_VERSION_AT = slice(8, 12)

# How often, and how far apart, the end of the log is looked at before it is called torn.
_LOOKS = 3
_LOOK_SECONDS = 0.01


@dataclass(slots=True)
class Audit:
    """A directory as it was found."""

    fs: FileSystem
    root: str
    tally: Tally
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    store_file: StoreFile | None = None
    """None if it is damaged."""
    identity: bytes | None = None
    """None if nothing tells it any more."""
    misplaced: list[Misplaced] = field(default_factory=list)
    """Files that are not what their names say."""
    ends: dict[int, End] = field(default_factory=dict)
    """How far the log was durable, at least."""
    bad_snapshots: list[int] = field(default_factory=list)
    is_rebuilt: bool = False
    """Whether no snapshot is left and the log does not go back to the beginning."""
    has_new_starts: bool = False
    """Whether log files that a snapshot needs are gone."""
    empty_shards: dict[int, int] = field(default_factory=dict)
    """Shards without a log file, and the lsn they were at."""
    damages: list[LogDamage] = field(default_factory=list)
    torn: list[TornTail] = field(default_factory=list)
    topics: list[TopicAudit] = field(default_factory=list)
    replay: Replay = field(init=False)

    def problem(self, kind: str, path: str, message: str, repair: str, **place: object) -> None:
        """Note something that is wrong."""
        self.problems.append(Problem(kind, path, message, repair, **place))  # type: ignore[arg-type]


def audit(fs: FileSystem, root: str, tally: Tally, checker: Checker | None = None) -> Audit:
    """Look at everything; raises `NotAStoreError`, or `UnsupportedVersionError`."""
    fs, directories = without_directories(fs, root)
    found = Audit(fs, root, tally)
    checker = LocalChecker(fs, tally) if checker is None else checker
    _read_store_file(found)
    store_file = found.store_file or _guess_store_file(found)
    found.ends = read_ends(fs, root, store_file.identity)
    found.replay = replay = Replay(fs, root, store_file)
    try:
        _look_at_snapshots(found)
        _look_at_places(found, store_file)
        for path in directories:
            message = "a directory where a file should be"
            found.misplaced.append(Misplaced(path, None, message))
            found.problem("misplaced", path, f"it is {message}", "it is moved to quarantine")
        _find_starts(found)
        try:
            replay.advance()
        except CorruptionError as error:
            found.problem("log", log_path(root), str(error), "nothing: this is beyond it")
            return found
        _look_at_log(found)
        _look_at_topics(found, checker)
        for name, reason in rejected(fs, root).items():
            path = incoming_path(root, name)
            found.notes.append(f"{path}: a batch that was published was set aside: {reason}")
    finally:
        replay.reader.close()
        replay.pool.close()
    return found


# --- the store file and the snapshots ---------------------------------------------------------


def _read_store_file(found: Audit) -> None:
    path = store_path(found.root)
    found.tally.files += 1
    repair = "the store file is made again"
    try:
        data = read_all(found.fs, path)
    except (FileNotFoundError, NotADirectoryError):
        if not is_store(found.fs, found.root):
            raise NotAStoreError(
                f"{found.root} is not a Stratalog store: there is no file {path}. Check the path."
            ) from None
        found.problem("store", path, "the store file is missing", repair)
    else:
        found.tally.read(len(data), path)
        try:
            found.store_file = decode_store(data)
            found.identity = found.store_file.identity
        except UnsupportedVersionError:
            if not _is_flipped_version(data):
                raise
            found.problem("store", path, "store file checksum does not match", repair)
        except FormatError as error:
            found.problem("store", path, str(error), repair)
    _ask_witnesses(found)


def _ask_witnesses(found: Audit) -> None:
    """Find out whose store it is from all that tells: a store file may be of another."""
    claimed = None if found.store_file is None else found.store_file.identity
    owner = owner_of(found.fs, found.root, claimed)
    if found.store_file is not None and owner != claimed:
        message = "it is the store file of another store"
        found.problem("store", store_path(found.root), message, "the store file is made again")
        found.store_file = None
    if found.store_file is None and owner is not None:
        found.identity = owner


def _guess_store_file(found: Audit) -> StoreFile:
    """A store file for a store that has none: of the version that its log was written in."""
    identity = found.identity or UNBOUND
    is_bound = not has_log(found.fs, found.root, b"") or has_log(found.fs, found.root, identity)
    return StoreFile(identity, 0, 2 if is_bound else 1)


def _look_at_places(found: Audit, store_file: StoreFile) -> None:
    replay = found.replay
    known = [] if replay.snapshot is None else list(replay.snapshot.log.shards.items())
    known += [(shard, end.first_lsn) for shard, end in found.ends.items()]
    found.misplaced = find_misplaced(
        found.fs, found.root, store_file.identity, store_file.log_identity, known
    )
    for one in found.misplaced:
        repair = "it is moved to quarantine"
        if one.target is not None:
            repair = f"it becomes {os.path.relpath(one.target, found.root)}, which it is"
        found.problem("misplaced", one.path, f"it is {one.message}", repair)


def is_store(fs: FileSystem, root: str) -> bool:
    """Whether there is anything of a store in a directory."""
    names = set(fs.listdir(root))
    directories = (log_path(root), snapshots_path(root), topics_path(root))
    return "store" in names or any(fs.listdir(path) for path in directories)


def _is_flipped_version(data: bytes) -> bool:
    """Whether a store file says it is of a newer version only because bits of that changed."""
    if len(data) != STORE_BYTES:
        return False
    for version in range(1, VERSION + 1):
        patched = bytearray(data)
        patched[_VERSION_AT] = version.to_bytes(4, "little")
        with contextlib.suppress(FormatError):
            decode_store(bytes(patched))
            return True
    return False


def _look_at_snapshots(found: Audit) -> None:
    snapshots = found.replay.snapshots
    for number in sorted({*snapshots.good, *snapshots.bad}):
        path = snapshot_path(found.root, number)
        found.tally.files += 1
        found.tally.read(len(read_all(found.fs, path)), path)
        if number in snapshots.bad:
            found.bad_snapshots.append(number)
            message = snapshots.bad[number].removeprefix(f"{path}: ")
            repair = "it is moved to quarantine; the one before it, or the whole log, is used"
            found.problem("snapshot", path, message, repair)


def _find_starts(found: Audit) -> None:
    """Have the replay begin where the log begins, if that is not where it should."""
    snapshot = found.replay.snapshot
    starts = {} if snapshot is None else dict(snapshot.log.shards)
    shards = _shards(found)
    firsts = {number: lsns[0] for number, lsns in shards.items() if lsns}
    late = {number: lsn for number, lsn in firsts.items() if lsn > starts.get(number, 0)}
    reached = dict(starts)
    for number, end in found.ends.items():
        reached[number] = max(end.end_lsn, reached.get(number, 0))
    found.empty_shards = {n: lsn for n, lsn in reached.items() if lsn and not shards.get(n)}
    for number, lsn in found.empty_shards.items():
        found.problem(
            "log-missing", shard_path(found.root, number),
            f"its log files, which went on from lsn {lsn}, are missing",
            "an empty log file takes their place; what only they had is lost",
        )  # fmt: skip
    if not late:
        return
    if snapshot is None:
        found.is_rebuilt = True
        found.problem(
            "snapshot", snapshots_path(found.root),
            "there is no snapshot that can be read, and the log does not go back to its beginning",
            "topics are put together from the log and the segments that are there",
        )  # fmt: skip
        empty = CatalogState(1, {}, "", [], [])
        found.replay.snapshot = Snapshot(0, 0, found.identity or b"", LogState(firsts), empty)
        return
    found.has_new_starts = True
    for number, lsn in late.items():
        found.problem(
            "log-missing", log_file_path(shard_path(found.root, number), lsn),
            f"the log files before it, from lsn {starts.get(number, 0)} on, are missing",
            "a new snapshot begins here; offsets that only they had become gaps",
        )  # fmt: skip
    log = msgspec.structs.replace(snapshot.log, shards=starts | late)
    found.replay.snapshot = snapshot._replace(log=log)


def _shards(found: Audit) -> dict[int, list[int]]:
    """First lsns of the log files of every shard."""
    shards = {}
    for name in found.fs.listdir(log_path(found.root)):
        number = parse_shard(name)
        if number is not None:
            names = found.fs.listdir(shard_path(found.root, number))
            shards[number] = [lsn for n in names if (lsn := parse_numbered(n)) is not None]
    return shards


# --- the log ----------------------------------------------------------------------------------


def _look_at_log(found: Audit) -> None:
    replay, tally = found.replay, found.tally
    tally.frames += replay.frames
    for number, scanner in replay.scanners.items():
        lsns = _shards(found).get(number, [])
        tally.files += len(lsns)
        start = 0 if replay.snapshot is None else replay.snapshot.log.shards.get(number, 0)
        tally.read(max(0, scanner.first_lsn + scanner.position - start), scanner.directory)
        for damage in scanner.damages:
            if damage.path != scanner.directory:
                _note_damage(found, damage.path, damage.start, damage.end, damage.reason, lsns)
        torn = scanner.torn_tail()
        if torn is not None and not torn.is_past:
            _note_torn(found, torn, scanner.seed)


def _note_damage(
    found: Audit, path: str, start: int, end: int, reason: str, lsns: list[int]
) -> None:
    first_lsn = parse_numbered(os.path.basename(path))
    assert first_lsn is not None
    file = found.fs.open(path, "read")
    try:
        size = file.size()
        started = (
            0
            if found.replay.snapshot is None
            else found.replay.snapshot.log.shards.get(shard_number(os.path.dirname(path)), 0)
        )
        is_cut = end > start >= size and first_lsn + end <= started
        if end < 0:
            end = min(lsn for lsn in lsns if lsn > first_lsn) - first_lsn
        data = file.pread(end - start, start)
    finally:
        file.close()
    seed = log_seed(found.replay.reader.identity, shard_number(os.path.dirname(path)), first_lsn)
    suspects = [] if is_cut else list(find_suspects(data, seed))
    found.damages.append(LogDamage(path, seed, start, end, reason, is_cut, suspects))
    if is_cut:
        found.problem(
            "log", path, reason, f"the file is made {end} bytes long again: a snapshot has what "
            "was there, and what came after it is lost", position=start,
        )  # fmt: skip
        return
    place: dict[str, object] = {}
    certain = [one for one in suspects if one.is_certain and one.type == FrameType.RECORDS]
    if len(suspects) == 1 and certain:
        topic = found.replay.topics.get(certain[0].topic_id)
        first, count = certain[0].first, certain[0].count
        place = {"first_offset": first, "last_offset": first + count - 1}
        place |= {"topic": None if topic is None else topic.name}
    kind = "log-missing" if not data.strip(b"\0") and size <= start + len(data) else "log"
    found.problem(
        kind, path, f"{reason} ({end - start} bytes up to position {end})",
        "the bytes are kept in quarantine and skipped; offsets that were in them become gaps",
        position=start, **place,
    )  # fmt: skip


def _note_torn(found: Audit, torn: TornTail, seed: int) -> None:
    if _goes_on(found.fs, torn, seed):
        return
    text = f"{torn.bytes} bytes after the last whole frame"
    found.torn.append(torn)
    found.problem(
        "torn-tail", torn.path,
        f"{text}: what a crash left of appends that were not acknowledged, or the newest record "
        "damaged",
        "they are kept in quarantine and cut off; opening the store cuts them off, too",
        position=torn.position,
    )  # fmt: skip


def _goes_on(fs: FileSystem, torn: TornTail, seed: int) -> bool:
    """Whether a writer has added a frame since, and it is no torn tail."""
    file = fs.open(torn.path, "read")
    try:
        for _ in range(_LOOKS):
            with contextlib.suppress(FormatError):
                if next(frames(file, seed, torn.position), None) is not None:
                    return True
            time.sleep(_LOOK_SECONDS)  # it may be half-way in
    finally:
        file.close()
    return False


# --- topics -----------------------------------------------------------------------------------


def _look_at_topics(found: Audit, checker: Checker) -> None:
    replay = found.replay
    unknown = _find_unknown(found)
    topics = sorted(replay.topics.values(), key=lambda topic: topic.id)
    plans = [plan_topic(found.fs, replay, topic) for topic in topics]
    checks = iter(checker.segments([task for plan in plans for task in plan.tasks]))
    frames = iter(checker.frames([task for plan in plans for task in plan.frames]))
    for plan in plans:
        topic = plan.topic
        one = audit_topic(
            found.fs, replay, plan, list(islice(checks, len(plan.tasks))),
            list(islice(frames, len(plan.frames))), found.tally,
            is_orphan=found.is_rebuilt or topic.id in unknown,
        )  # fmt: skip
        one.tail = _lost_tail(found, topic)
        found.topics.append(one)
        found.problems += one.problems()
        _look_for_strays(found, one)
    for one in found.topics:
        if one.topic.version < 0 and one.topic.id not in unknown:
            found.problem(
                "topic-name", one.topic.history.directory,
                f"topic {one.topic.id} lost its name and its options",
                f"the topic is called recovered-{one.topic.id}",
            )  # fmt: skip


def _look_for_strays(found: Audit, one: TopicAudit) -> None:
    """Note what opening the store objects to, and nothing above has spoken of."""
    known = {problem.path for problem in found.problems}
    for flaw in found.replay.problems.get(one.topic.id, []):
        directory, name = os.path.split(flaw.path)
        if flaw.path not in known and name in found.fs.listdir(directory):
            one.strays.append(flaw.path)
            found.problem(
                "segment", flaw.path, flaw.message,
                "it is moved to quarantine: nothing needs it", topic=one.name,
            )  # fmt: skip


def _find_unknown(found: Audit) -> set[int]:
    """Take in topics of which only files, or damaged frames, are left; returns the former."""
    replay = found.replay
    unknown: set[int] = set()
    for name in found.fs.listdir(topics_path(found.root)):
        id = parse_topic(name)
        if id is None or id in replay.topics or id in replay.dropped:
            continue
        directory = os.path.join(topics_path(found.root), name)
        files = found.fs.listdir(directory)
        if any(file.endswith((".seg", ".open")) for file in files):
            unknown.add(id)
            replay.adopt(id)
            found.problem(
                "unknown-topic", directory, f"segments of a topic {id} that is in no catalog",
                f"the topic is called recovered-{id}",
            )  # fmt: skip
    for suspect in _certain(found):
        if suspect.topic_id not in replay.topics and suspect.topic_id not in replay.dropped:
            replay.adopt(suspect.topic_id)
    return unknown


def _certain(found: Audit) -> list[Suspect]:
    suspects = [suspect for damage in found.damages for suspect in damage.suspects]
    return [one for one in suspects if one.is_certain and one.type == FrameType.RECORDS]


def _lost_tail(found: Audit, topic: TopicLog) -> tuple[int, int] | None:
    """Newest offsets of a topic that were in damaged places, with none of its records after."""
    suspects = [
        one
        for damage in found.damages
        for one in damage.suspects
        if one.topic_id == topic.id and one.type == FrameType.RECORDS
    ]
    first = end = topic.next_offset
    for one in sorted(suspects, key=lambda one: one.first):
        if one.first == end or (one.is_certain and one.first > end):
            end = one.first + one.count
    return None if end == first or topic.is_ephemeral else (first, end - 1)
