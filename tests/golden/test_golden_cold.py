"""Cold segments that past releases moved are read by this one.

`scripts/make_golden_cold.py` made them. They are never made again: if a test here fails, the
format has changed, and what changed is the code.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import stratalog
from stratalog.format.claim import decode_claim, encode_claim
from stratalog.format.control import decode_tier, encode_tier
from stratalog.format.frame import FrameType
from stratalog.format.snapshot import decode_snapshot, encode_snapshot
from stratalog.fs import PosixFileSystem
from stratalog.handles.store import Store
from stratalog.log.scan import frames
from stratalog.options import StoreOptions
from stratalog.testing import ManualClock
from tests.golden.cold import expected, files

ROOTS = sorted(Path(__file__).parent.glob("v*-cold"))
each_store = pytest.mark.parametrize("root", ROOTS, ids=lambda root: root.name)


def _open(tmp_path: Path, **options: Any) -> Store:
    given = {"shards": 1, "hot_segments": 1, "cold": str(tmp_path / "cold"), **options}
    return Store(
        tmp_path / "data", StoreOptions.build(given, {}), clock=ManualClock(), background=False
    )


def _copy(root: Path, tmp_path: Path) -> dict[str, Any]:
    shutil.copytree(root, tmp_path, dirs_exist_ok=True)
    found: dict[str, Any] = json.loads((root / "expected.json").read_text())
    return found


@each_store
@pytest.mark.parametrize("has_snapshots", [True, False])
def test_a_golden_store_is_read_with_its_cold_segments(
    root: Path, tmp_path: Path, has_snapshots: bool
) -> None:
    """From its snapshot and the log after it, from the log alone, and it is whole."""
    wanted = _copy(root, tmp_path)
    if not has_snapshots:
        shutil.rmtree(tmp_path / "data" / "snapshots")
    assert stratalog.verify(tmp_path / "data", cold=str(tmp_path / "cold")).ok
    store = _open(tmp_path)
    assert store.damage is None
    assert expected(store) == wanted
    assert store.topic("kept").stats().cold_segments == 3
    store.close()


@each_store
def test_a_golden_store_goes_on(root: Path, tmp_path: Path) -> None:
    """More moves to the cold store, and what is old there is read after two snapshots, too."""
    wanted = _copy(root, tmp_path)
    store = _open(tmp_path)
    for number in range(10):
        store.topic("kept").append(b"more %d" % number)
    wanted["kept"] += [[20 + number, f"more {number}"] for number in range(10)]
    assert store.compact().segments_moved >= 1
    store.snapshot()
    store.snapshot()
    assert expected(store) == wanted
    store.close()
    store = _open(tmp_path)
    assert expected(store) == wanted
    store.close()


@each_store
def test_objects_of_a_golden_store_are_never_deleted_by_a_copy(root: Path, tmp_path: Path) -> None:
    """A copied directory does not know who else refers to them; old names do not say either."""
    _copy(root, tmp_path)
    before = sorted((tmp_path / "cold").rglob("*.seg"))
    store = _open(tmp_path)
    store.topic("kept").delete(before=18)
    store.drop_topic("evicted")
    store.compact()
    assert store.topic("kept").read_values() == [b"3-3", b"3-4"]
    store.close()
    assert set(before) <= set((tmp_path / "cold").rglob("*.seg"))


@each_store
def test_golden_tier_frames_snapshots_and_claims_are_written_as_they_were(root: Path) -> None:
    """To the byte."""
    tiers = 0
    for path in sorted(root.rglob("*.log")):
        file = PosixFileSystem().open(str(path), "read")
        for _, header, body in frames(file, int(path.stem), 0):
            if header.type == FrameType.TIER:
                tiers += 1
                assert encode_tier(*decode_tier(body)) == body
        file.close()
    assert tiers
    for path in root.rglob("*.snap"):
        assert encode_snapshot(decode_snapshot(path.read_bytes())) == path.read_bytes()
    for path in root.rglob("claim"):
        assert encode_claim(decode_claim(path.read_bytes())) == path.read_bytes()


def test_the_newest_golden_store_is_what_would_be_made_now() -> None:
    """Repeated calls give the same result, in files of equal sizes; an incarnation is random."""
    root, made = ROOTS[-1], files()
    assert made.pop("expected.json") == (root / "expected.json").read_bytes()
    there = {path.relative_to(root): path for path in root.rglob("*") if path.is_file()}
    sizes = {(path.parts[0], path.suffix): 0 for path in there}
    for path in there.values():
        place = path.relative_to(root)
        sizes[place.parts[0], place.suffix] += path.stat().st_size
    del sizes["expected.json", ".json"]
    for name, data in made.items():
        sizes[Path(name).parts[0], Path(name).suffix] -= len(data)
    assert not any(sizes.values())
