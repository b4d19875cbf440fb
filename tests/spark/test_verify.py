"""Verify on Spark says what verify says, of whole stores and of damaged ones."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.conftest import OpenStore
from tests.crash.model import ROOT
from tests.unit.tools.stores import WORK, Image, segments
from tests.unit.tools.test_repair import DAMAGE, STORES
from xxhash import xxh3_64_intdigest

import stratalog
from stratalog.errors import NotAStoreError, StorageError, UnsupportedVersionError
from stratalog.segments.checkpoint import seal
from stratalog.spark import jobs
from stratalog.spark.jobs.work import WorkError, pack, run
from stratalog.tools.report import Report

# The package has the function of that name.
verify_module = importlib.import_module("stratalog.spark.jobs.verify")


def _write(image: Image, directory: Path) -> Path:
    for path, data in image.items():
        file = directory / os.path.relpath(path, ROOT)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    return directory


def _timeless(report: Report) -> Report:
    return msgspec.structs.replace(report, duration=0.0)


@pytest.fixture(params=[1, 64 << 20], ids=["batch by batch", "segment by segment"])
def piece_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How large the pieces are: of one batch each, and whole segments."""
    size: int = request.param
    monkeypatch.setattr(verify_module, "piece_bytes", lambda *_: size)
    return size


@pytest.mark.parametrize(
    "damage", [item[0] for item in DAMAGE], ids=[item[0].__name__[1:] for item in DAMAGE]
)
def test_it_finds_what_verify_finds(
    spark: Any, tmp_path: Path, piece_bytes: int, damage: Callable[[Image], None]
) -> None:
    """Every kind of damage, with the same words, places and counts."""
    image = dict(STORES[segments, True][0])
    damage(image)
    path = _write(image, tmp_path / "data")
    expected = stratalog.verify(path)
    assert not expected.ok
    assert _timeless(jobs.verify(path, spark=spark)) == _timeless(expected)


@pytest.mark.parametrize("work", WORK, ids=lambda work: work.__name__)
def test_a_whole_store_is_whole(
    spark: Any, tmp_path: Path, piece_bytes: int, work: Callable[..., None]
) -> None:
    """Closed or killed, and all of it was looked at."""
    for close in (True, False):
        path = _write(STORES[work, close][0], tmp_path / str(close))
        found = jobs.verify(path, spark=spark)
        assert found.ok, str(found)
        assert _timeless(found) == _timeless(stratalog.verify(path))


def test_damage_inside_of_a_part_is_placed(
    spark: Any, tmp_path: Path, open_store: OpenStore, piece_bytes: int
) -> None:
    """A segment of many batches, of which the first, one in the middle and the last are bad."""
    with open_store(shards=1) as store:
        topic = store.topic("orders")
        for number in range(8):
            topic.append_many([b"%d" % number * 1000] * 600)
        store.snapshot()
        store.create_topic("empty")
        topic.append_many([b"x"] * 3)
        store.checkpoint()
        topic.append(b"later")
    segment = next(tmp_path.rglob("*.open"))
    with open_store(shards=1) as store:
        seal(store.topic("orders")._log, store.clock.time_ns())
    segment = segment.with_suffix(".seg")
    data = bytearray(segment.read_bytes())
    loaded = stratalog.verify(tmp_path / "data")
    assert loaded.ok
    assert loaded.counts.batches > 5
    for position in (200, len(data) // 2, len(data) - 600):
        data[position] ^= 1
    segment.write_bytes(bytes(data))
    expected = stratalog.verify(tmp_path / "data")
    assert len(expected.problems) == 3
    assert _timeless(jobs.verify(tmp_path / "data", spark=spark)) == _timeless(expected)


def test_errors_are_those_of_verify(spark: Any, tmp_path: Path) -> None:
    """Also those that executors meet."""
    with pytest.raises(NotAStoreError):
        jobs.verify(tmp_path, spark=spark)
    image = dict(STORES[segments, True][0])
    name = next(path for path in image if path.endswith("00000000000000000020.seg"))
    newer = bytearray(image[name][64:128])
    newer[4] = 9
    newer[56:60] = bytes(4)
    newer[56:60] = (xxh3_64_intdigest(bytes(newer), 0) & 0xFFFFFFFF).to_bytes(4, "little")
    image[name] = image[name][:64] + bytes(newer) + image[name][128:]
    path = _write(image, tmp_path / "data")
    with pytest.raises(UnsupportedVersionError) as expected:
        stratalog.verify(path)
    with pytest.raises(UnsupportedVersionError) as found:
        jobs.verify(path, spark=spark)
    assert str(found.value) == str(expected.value)


def test_executors_that_do_not_see_the_store_are_told_apart(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is here and not there: it was not moved, it is another machine."""
    path = _write(STORES[segments, True][0], tmp_path / "data")
    monkeypatch.setattr(verify_module, "read_piece", _not_there)
    with pytest.raises(StorageError, match="every executor must see"):
        jobs.verify(path, spark=spark)


def _not_there(piece: Any) -> None:
    raise FileNotFoundError(2, "No such file", piece.task.path)


def test_progress_comes_to_its_end(spark: Any, tmp_path: Path) -> None:
    """Bytes never go back and never pass the whole."""
    path = _write(STORES[segments, True][0], tmp_path / "data")
    seen: list[tuple[int, int, str]] = []
    report = jobs.verify(path, spark=spark, progress=lambda *step: seen.append(step))
    assert all(done <= total for done, total, _ in seen)
    assert seen[-1][0] == report.counts.bytes


def test_work_is_packed_by_size() -> None:
    """Everything once, in groups that differ by no more than the largest piece."""
    sizes = [1, 50, 3, 20, 20, 10, 0, 7]
    groups = pack(sizes, 3)
    assert sorted(number for group in groups for number in group) == list(range(8))
    totals = [sum(sizes[number] for number in group) for group in groups]
    assert max(totals) == 50
    assert pack([5], 4) == [[0]]


def test_an_error_nobody_foresaw_names_its_place(spark: Any) -> None:
    """With the traceback of the executor."""
    with pytest.raises(WorkError, match=r"int\(\) argument|invalid literal"):
        run(spark, int, ["1", "x"], [1, 1])
    assert run(spark, int, ["1", "2", "3"], [1, 1, 1]) == [1, 2, 3]
    assert run(spark, int, [], []) == []
