"""Verifying beside a live writer, cold segments, progress, and what a report says."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.conftest import OpenStore

import stratalog
from stratalog.fs import PosixFileSystem
from stratalog.segments.checkpoint import checkpoint
from stratalog.tools.dump import dump
from stratalog.tools.overlay import OverlayFs


def test_a_live_writer_is_no_damage(tmp_path: Path, open_store: OpenStore) -> None:
    """Files come, go, grow and are renamed while one looks."""
    store = open_store(shards=1, log_file_bytes=1 << 14, hot_segments=2)
    topic = store.create_topic("orders", segment_records=50, retention_records=400)
    done = threading.Event()

    def write() -> None:
        number = 0
        while not done.is_set():
            topic.append_many([b"order %d" % number * 20] * 10)
            number += 1
            if number % 5 == 0:
                store.compact()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(15):
            report = stratalog.verify(tmp_path / "data")
            assert report.ok, str(report)
    finally:
        done.set()
        writer.join()


def test_cold_segments_are_looked_for(tmp_path: Path, open_store: OpenStore) -> None:
    """With the cold store each must be there with its size; without, they are unchecked."""
    cold = str(tmp_path / "cold")
    with open_store(shards=1, cold=cold, hot_segments=1) as store:
        topic = store.create_topic("orders", segment_records=10)
        topic.append_many([b"order"] * 45)
        store.compact()
    data = tmp_path / "data"
    report = stratalog.verify(data)
    assert report.ok
    assert "not checked" in str(report)
    assert stratalog.verify(data, cold=cold).notes == []
    moved = sorted((tmp_path / "cold").rglob("*.seg"))
    moved[0].unlink()
    moved[1].write_bytes(b"short")
    missing, short = stratalog.verify(data, cold=cold).problems
    assert (missing.kind, missing.first_offset, missing.last_offset) == ("cold", 0, 9)
    assert "is missing" in missing.message
    assert "has 5 bytes" in short.message


def test_progress_comes_to_its_end(tmp_path: Path, open_store: OpenStore) -> None:
    """Bytes done only grow, and never pass the whole."""
    with open_store(shards=1) as store:
        store.create_topic("orders", segment_records=10).append_many([b"order"] * 45)
        store.snapshot()
    seen: list[tuple[int, int, str]] = []
    report = stratalog.verify(tmp_path / "data", progress=lambda *step: seen.append(step))
    done = [step[0] for step in seen]
    assert done == sorted(done)
    assert all(step[0] <= step[1] for step in seen)
    assert report.counts.bytes == done[-1]
    assert report.counts.records == 45


def test_a_report_reads_well(tmp_path: Path, open_store: OpenStore) -> None:
    """The problem, its place, and what was done about it."""
    with open_store(shards=1) as store:
        for number in range(3):
            store.topic("orders").append(b"order %d" % number)
    path = next(tmp_path.rglob("*.log"))
    path.write_bytes(path.read_bytes().replace(b"order 1", b"order X"))
    report = stratalog.verify(tmp_path / "data")
    assert str(report).splitlines()[0] == f"{tmp_path / 'data'}: 2 problems"
    assert f"{path} at position" in str(report)
    assert "(topic 'orders', offsets 1 to 1)" in str(report)
    plan = stratalog.repair(tmp_path / "data", dry_run=True)
    assert plan.dry_run
    assert "nothing was changed; after this, the store would be whole" in str(plan)
    assert "the store is whole again" in str(stratalog.repair(tmp_path / "data"))
    assert stratalog.verify(tmp_path / "data").ok


@pytest.mark.slow
def test_dump_decodes_every_file(tmp_path: Path, open_store: OpenStore) -> None:
    """Each kind of thing is there, with its place."""
    with open_store(shards=1) as store:
        store.create_topic("orders", segment_records=10).append_many([b"order"] * 25)
        store.topic("orders").delete(offsets=[3])
        store.snapshot()
    rows = list(dump(tmp_path / "data"))
    kinds = {row["kind"] for row in rows}
    assert kinds >= {
        "store", "snapshot", "catalog", "topic", "log", "records", "checkpoint", "delete",
        "header", "index", "footer",
    }  # fmt: skip
    assert not any("damage" in row for row in rows)
    segment = next(tmp_path.rglob("*.seg"))
    data = segment.read_bytes()
    segment.write_bytes(data[:90] + b"?" + data[91:-1] + b"?")
    assert [row["kind"] for row in dump(segment) if "damage" in row] == ["damage", "footer"]


def test_an_overlay_keeps_every_change_to_itself(tmp_path: Path) -> None:
    """Writes, cuts, renames and removals are seen through it, and nowhere else."""
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 600)
    fs = OverlayFs(PosixFileSystem())
    file = fs.open(str(path), "write")
    expected = bytearray(path.read_bytes())
    for position, data in ((65530, b"across two pages"), (10, b"x"), (153590, b"past the end")):
        file.pwrite([data], position)
        expected[position : position + len(data)] = data
    assert file.pread(1 << 20, 0) == expected
    file.truncate(70000)
    file.truncate(200000)
    expected[70000:] = bytes(130000)
    assert fs.open(str(path), "read").pread(1 << 20, 0) == expected
    assert bytes(file.mmap()) == expected
    fs.rename(str(path), str(tmp_path / "other"))
    assert fs.listdir(str(tmp_path)) == ["other"]
    with pytest.raises(FileNotFoundError):
        fs.open(str(path), "read")
    with pytest.raises(FileExistsError):
        fs.open(str(tmp_path / "other"), "create")
    fs.unlink(str(tmp_path / "other"))
    assert fs.listdir(str(tmp_path)) == []
    assert path.read_bytes() == bytes(range(256)) * 600


def test_a_segment_whose_move_was_forgotten_is_found_in_the_cold_store(
    tmp_path: Path, open_store: OpenStore
) -> None:
    """The TIER frames were damaged: the segments are neither here nor known to be there."""
    cold = str(tmp_path / "cold")
    with open_store(shards=1, cold=cold, hot_segments=1) as store:
        topic = store.create_topic("orders", segment_records=10)
        topic.append_many([b"order"] * 45)
        store.checkpoint()
        assert store._log is not None
        end = store._log.shards[0].files.position
        store.compact()
    for path in tmp_path.rglob("*.snap"):
        path.unlink()
    log = next(tmp_path.rglob("*.log"))
    log.write_bytes(log.read_bytes()[:end])
    data = tmp_path / "data"
    (data / "log" / "ends").unlink()  # it would say that this is not the end
    assert [p.kind for p in stratalog.verify(data).problems] == ["segment-missing"]
    assert stratalog.repair(data, cold=cold).ok
    assert stratalog.verify(data, cold=cold).ok
    with open_store(cold=cold) as store:
        assert store.topic("orders").read_values() == [b"order"] * 45


@pytest.mark.slow
def test_a_segment_that_is_sealed_in_the_middle_of_a_frame_is_no_problem(
    tmp_path: Path, open_store: OpenStore
) -> None:
    """A verification beside a busy writer said that records are older than those before them.

    A checkpoint had sealed a segment with the first records of a frame, and the others were still
    in the log alone: the frame there begins before the segment ends. A writer that is killed at
    this moment leaves it so.
    """
    with open_store(shards=1) as store:
        topic = store.create_topic("orders", segment_records=20)
        topic.append_many([stratalog.Record(b"%d" % n, timestamp=10**18 + n) for n in range(30)])

        def stop() -> None:
            raise InterruptedError

        with pytest.raises(InterruptedError):
            checkpoint(topic.log, 10**18, stop)
        assert [path.name for path in tmp_path.rglob("*.seg")] == ["00000000000000000000.seg"]
        report = stratalog.verify(tmp_path / "data")
        assert report.ok, str(report)
        assert len(topic.read_values()) == 30
