"""Every kind of damage is named, planned without a change, repaired, and repaired only once."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.crash.model import ROOT, open_store
from tests.unit.tools.stores import (
    WORK,
    Image,
    build,
    check_readable,
    check_repair,
    disk_of,
    given_up,
    log_only,
    segments,
)

import stratalog
from stratalog.errors import LockedError, NotAStoreError, UnsupportedVersionError
from stratalog.model import Gap
from stratalog.testing import Crashed, FakeDisk, ManualClock
from stratalog.tools.repair import repair
from stratalog.tools.verify import verify

LOG_0 = f"{ROOT}/log/shard-00/00000000000000000000.log"
TOPIC_1 = f"{ROOT}/topics/0000000000000001"
SEG_0 = f"{TOPIC_1}/00000000000000000000.seg"
SEG_20 = f"{TOPIC_1}/00000000000000000020.seg"
OPEN = f"{TOPIC_1}/00000000000000000040.open"
SNAPSHOT = f"{ROOT}/snapshots/00000000000000000001.snap"

STORES = {(work, close): build(work, close=close) for work in WORK for close in (True, False)}


def flip(image: Image, path: str, position: int) -> None:
    """Change one bit."""
    data = bytearray(image[path])
    data[position] ^= 4
    image[path] = bytes(data)


def gaps(image: Image, topic: str = "orders") -> list[Gap]:
    """Collect what a topic's readers get after a repair."""
    disk = disk_of(image)
    assert repair(ROOT, fs=disk, clock=ManualClock()).ok
    with open_store(disk, ManualClock(), shards=1) as store:
        return [item for item in store.topic(topic).read() if isinstance(item, Gap)]


def _body_in_the_log(image: Image) -> None:
    flip(image, LOG_0, image[LOG_0].index(b"later 1"))


def _header_in_the_log(image: Image) -> None:
    flip(image, LOG_0, image[LOG_0].index(b"later 1") - 40)


def _newest_record(image: Image) -> None:
    flip(image, LOG_0, image[LOG_0].rindex(b"later 3"))


def _batch(image: Image) -> None:
    flip(image, SEG_20, 140)


def _footer(image: Image) -> None:
    flip(image, SEG_0, len(image[SEG_0]) - 20)


def _index(image: Image) -> None:
    flip(image, SEG_0, len(image[SEG_0]) - 110)


def _segment_header(image: Image) -> None:
    flip(image, SEG_0, 20)


def _segment_gone(image: Image) -> None:
    del image[SEG_20]


def _open_cut(image: Image) -> None:
    image[OPEN] = image[OPEN][:90]


def _open_gone(image: Image) -> None:
    del image[OPEN]


def _snapshot(image: Image) -> None:
    flip(image, SNAPSHOT, 200)


def _store_file(image: Image) -> None:
    flip(image, f"{ROOT}/store", 20)


def _store_version(image: Image) -> None:
    flip(image, f"{ROOT}/store", 8)


def _store_gone(image: Image) -> None:
    del image[f"{ROOT}/store"]


def _log_gone(image: Image) -> None:
    del image[LOG_0]


def _log_cut(image: Image) -> None:
    image[LOG_0] = image[LOG_0][:1000]


# What is done to a store, the kind of problem it is, the path that is named, records lost.
DAMAGE: list[tuple[Callable[[Image], None], str, str, int]] = [
    (_body_in_the_log, "log", LOG_0, 1),
    (_header_in_the_log, "log", LOG_0, 1),
    (_newest_record, "log", LOG_0, 1),
    (_batch, "batch", SEG_20, 0),
    (_footer, "segment", SEG_0, 0),
    (_index, "segment", SEG_0, 0),
    (_segment_header, "segment", SEG_0, 0),
    (_segment_gone, "segment-missing", TOPIC_1, 0),
    (_open_cut, "batch", OPEN, 0),
    (_open_gone, "segment-missing", TOPIC_1, 0),
    (_snapshot, "snapshot", SNAPSHOT, 0),
    (_store_file, "store", f"{ROOT}/store", 0),
    (_store_version, "store", f"{ROOT}/store", 0),
    (_store_gone, "store", f"{ROOT}/store", 0),
    (_log_gone, "log-missing", f"{ROOT}/log/shard-00", 8),
    (_log_cut, "log", LOG_0, 8),
]


@pytest.mark.parametrize(
    ("damage", "kind", "path", "lost"), DAMAGE, ids=[item[0].__name__[1:] for item in DAMAGE]
)
def test_damage_is_named_and_repaired(
    damage: Callable[[Image], None], kind: str, path: str, lost: int
) -> None:
    """Where the log still has what a segment lost, nothing is lost at all."""
    image, sent = dict(STORES[segments, True][0]), STORES[segments, True][1]
    damage(image)
    found = verify(ROOT, fs=disk_of(image))
    assert not found.ok
    assert (kind, path) in [(problem.kind, problem.path) for problem in found.problems], str(found)
    report, gone = check_repair(image, sent)
    assert gone == lost, str(report)
    assert kind in str(report)


@pytest.mark.parametrize("work", WORK, ids=lambda work: work.__name__)
def test_a_whole_store_is_left_alone(work: Callable[..., None]) -> None:
    """Nothing is found, and nothing is done."""
    for close in (True, False):
        image, sent = STORES[work, close]
        assert verify(ROOT, fs=disk_of(image)).ok
        report, gone = check_repair(image, sent)
        assert (report.actions, gone) == ([], 0)


def test_gaps_are_exact_where_segments_alone_had_the_records() -> None:
    """The log was given up: a damaged batch is a gap of just its offsets."""
    image, sent = dict(STORES[given_up, True][0]), STORES[given_up, True][1]
    path = f"{TOPIC_1}/00000000000000000000.seg"
    flip(image, path, 100)
    (problem,) = verify(ROOT, fs=disk_of(image)).problems
    assert (problem.kind, problem.path, problem.position) == ("batch", path, 64)
    assert problem.first_offset == 0
    assert problem.last_offset is not None
    assert gaps(image) == [Gap(0, problem.last_offset, "damaged")]
    assert check_repair(image, sent)[1] == problem.last_offset + 1


def test_a_missing_segment_is_a_gap() -> None:
    """Neither a segment nor the log has its offsets."""
    image = dict(STORES[given_up, True][0])
    del image[f"{TOPIC_1}/00000000000000000025.seg"]
    assert gaps(image) == [Gap(25, 49, "damaged")]


def test_damage_in_the_log_is_kept_and_skipped() -> None:
    """The bytes are in quarantine, and the frames after them are read."""
    image = dict(STORES[segments, True][0])
    _body_in_the_log(image)
    disk = disk_of(image)
    (problem, hole) = verify(ROOT, fs=disk).problems
    assert (problem.topic, problem.first_offset, problem.last_offset) == ("orders", 49, 49)
    assert (hole.kind, hole.first_offset, hole.last_offset) == ("offsets", 49, 49)
    repair(ROOT, fs=disk, clock=ManualClock())
    name = f"shard-00-00000000000000000000.log-{problem.position}.bin"
    kept = disk.image()[f"{ROOT}/quarantine/{name}"]
    assert problem.position is not None
    assert kept == image[LOG_0][problem.position : problem.position + len(kept)]
    assert gaps(image) == [Gap(49, 49, "damaged")]


def test_a_lost_name_is_replaced() -> None:
    """A topic whose TOPIC frame is gone has all its records, and another name."""
    image, sent = dict(STORES[log_only, True][0]), STORES[log_only, True][1]
    path = next(path for path, data in image.items() if b"orders" in data)
    flip(image, path, image[path].index(b"orders"))
    kinds = {problem.kind for problem in verify(ROOT, fs=disk_of(image)).problems}
    assert kinds == {"log", "topic-name"}
    assert check_repair(image, sent)[1] == 0


@pytest.mark.parametrize("close", [True, False])
def test_without_any_snapshot_topics_are_put_together_again(close: bool) -> None:
    """From segments and the log; names that only snapshots had are gone."""
    image, sent = dict(STORES[given_up, close][0]), STORES[given_up, close][1]
    for path in [path for path in image if path.endswith(".snap")]:
        flip(image, path, 70)
    report, gone = check_repair(image, sent)
    assert gone == 0
    assert {action.kind for action in report.actions} >= {"snapshot", "topic-name"}


def test_a_missing_log_file_in_the_middle_is_bridged() -> None:
    """The records of the file are a gap, later ones are there."""
    image, sent = dict(STORES[log_only, False][0]), STORES[log_only, False][1]
    paths = sorted(path for path in image if path.endswith(".log"))
    shard = max(
        {path.rpartition("/")[0] for path in paths}, key=lambda d: sum(d in p for p in paths)
    )
    files = [path for path in paths if path.startswith(shard)]
    assert len(files) > 2
    del image[files[1]]
    assert "log-missing" in [problem.kind for problem in verify(ROOT, fs=disk_of(image)).problems]
    assert 0 < check_repair(image, sent)[1] < 40


def test_the_newest_offsets_are_not_given_out_again() -> None:
    """Damaged frames at a topic's end, with another topic's after them, keep their offsets."""
    image = dict(STORES[segments, True][0])
    flip(image, LOG_0, image[LOG_0].rindex(b"later 3", 0, image[LOG_0].rindex(b"later 3")))
    disk = disk_of(image)
    repair(ROOT, fs=disk, clock=ManualClock())
    with open_store(disk, ManualClock(), shards=1) as store:
        orders = store.topic("orders")
        assert orders.next_offset == 52
        assert list(orders.read(51)) == [Gap(51, 51, "damaged")]
        assert orders.append(b"new") == 52
        store.snapshot()
        assert isinstance(next(orders.read(51)), Gap)


def test_repair_needs_the_writers_lock() -> None:
    """Also a dry run, which leaves the lock file as it is."""
    disk = disk_of(STORES[segments, True][0])
    store = open_store(disk, ManualClock(), shards=1)
    for dry_run in (True, False):
        with pytest.raises(LockedError):
            repair(ROOT, fs=disk, dry_run=dry_run)
    assert verify(ROOT, fs=disk).ok
    store.close()


def test_what_is_no_store_or_too_new_is_refused() -> None:
    """Neither is damage."""
    with pytest.raises(NotAStoreError):
        verify(ROOT, fs=FakeDisk())
    with pytest.raises(NotAStoreError):
        repair(ROOT, fs=FakeDisk())
    image = dict(STORES[segments, True][0])
    path = f"{ROOT}/store"
    image[path] = image[path][:8] + b"\3\0\0\0" + image[path][12:40] + bytes(8)
    for tool in (verify, repair):
        with pytest.raises(UnsupportedVersionError):
            tool(ROOT, fs=disk_of(image))


CRASHED = [_body_in_the_log, _header_in_the_log, _newest_record, _batch, _open_cut, _snapshot]


@pytest.mark.slow
@pytest.mark.parametrize("damage", [*CRASHED, None], ids=lambda d: d.__name__[1:] if d else "many")
def test_a_repair_that_is_cut_short_can_be_finished(
    damage: Callable[[Image], None] | None,
) -> None:
    """A crash after any of its file operations, whatever of them the disk has kept."""
    work = segments if damage else given_up
    image, sent = dict(STORES[work, False][0]), STORES[work, False][1]
    if damage is not None:
        damage(image)
    else:
        for path in [path for path in image if path.endswith(".snap")]:
            flip(image, path, 70)
        flip(image, f"{TOPIC_1}/00000000000000000000.seg", 100)
        del image[f"{TOPIC_1}/00000000000000000025.seg"]
    _, expected = check_repair(image, sent)
    for point in range(500):
        disk = disk_of(image, crash_after=point)
        try:
            repair(ROOT, fs=disk, clock=ManualClock())
        except Crashed:
            pass
        else:
            assert point > 3
            break
        for seed, kind in ((0, "keep"), (0, "drop"), (point, "random")):
            after = disk.crash(seed, kind)  # type: ignore[arg-type]
            try:
                report = repair(ROOT, fs=after, clock=ManualClock())
                assert report.ok, str(report)
                assert verify(ROOT, fs=after).ok
                assert repair(ROOT, fs=after, clock=ManualClock()).actions == []
                assert check_readable(after, sent) == expected
            except BaseException as error:
                error.add_note(f"crash after {point} operations, {kind} {seed}")
                raise


@pytest.mark.parametrize("seed", range(150))
def test_any_flipped_bit_is_found_or_does_no_harm(seed: int) -> None:
    """Any file of any store is damaged, then repaired: every record that is returned is right."""
    chance = random.Random(seed)
    image, sent = STORES[chance.choice(list(STORES))]
    image = dict(image)
    path = chance.choice([path for path in image if image[path]])
    flip(image, path, chance.randrange(len(image[path])))
    found = verify(ROOT, fs=disk_of(image))
    if found.ok:
        assert check_readable(disk_of(image), sent) == 0, f"{path} was changed unnoticed"
    report, gone = check_repair(image, sent)
    assert bool(report.actions) != found.ok
    assert gone <= 25


@pytest.mark.parametrize("seed", range(60))
def test_a_store_with_much_damage_still_becomes_one(seed: int) -> None:
    """Bits flipped, files cut and files removed, all at once."""
    chance = random.Random(seed)
    image, sent = STORES[chance.choice(list(STORES))]
    image = dict(image)
    for _ in range(chance.randint(2, 4)):
        path = chance.choice([path for path in image if image[path]])
        position = chance.randrange(len(image[path]))
        if path.endswith("/store"):
            continue  # a store file that was changed twice may be of a newer version
        kind = chance.choice(["flip", "flip", "cut", "remove"])
        if kind == "flip":
            flip(image, path, position)
        elif kind == "cut":
            image[path] = image[path][:position]
        else:
            del image[path]
    check_repair(image, sent)


@pytest.mark.parametrize("deleted", [[10], [19], [13, 14], [18, 19], list(range(10, 20))])
def test_what_was_deleted_and_then_lost_is_neither_read_nor_missed(
    tmp_path: Path, deleted: list[int]
) -> None:
    """At the end of what is lost, before a segment, it was damage for good that nothing named."""
    with stratalog.open(tmp_path / "data", shards=1, log_file_bytes=4096) as store:
        topic = store.create_topic("t", segment_records=10)
        for _ in range(4):
            topic.append_many([b"a long value " * 20] * 10)
            store.checkpoint()
        topic.delete(offsets=deleted)
        for _ in range(2):  # and the log no longer has the records
            topic.append(b"more")
            store.snapshot()
    (victim,) = (tmp_path / "data" / "topics").glob("*/00000000000000000010.seg")
    victim.unlink()
    assert stratalog.repair(tmp_path / "data").ok
    assert stratalog.verify(tmp_path / "data").ok
    with stratalog.open(tmp_path / "data") as store:
        found: list[int] = []
        told: list[int] = []
        for item in store.topic("t").read():
            if isinstance(item, Gap):
                told += range(item.first, item.last + 1)
            else:
                found.append(item.offset)
        assert found == [*range(10), *range(20, 42)]
        # Deleted records between lost ones may be in the gap of these.
        assert set(range(10, 20)) - set(deleted) <= set(told) <= set(range(10, 20))
