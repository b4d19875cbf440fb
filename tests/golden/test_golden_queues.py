"""Groups and queues that past releases wrote are read by this one.

`scripts/make_golden_queues.py` made them. They are never made again: if a test here fails, the
format has changed, and what changed is the code.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stratalog.format.frame import FrameType
from stratalog.format.groups import decode_group, encode_group
from stratalog.format.snapshot import decode_snapshot, encode_snapshot
from stratalog.fs import PosixFileSystem
from stratalog.handles.store import Store
from stratalog.log.scan import frames
from stratalog.options import StoreOptions
from stratalog.testing import ManualClock
from tests.golden.queues import expected, files

ROOTS = sorted(Path(__file__).parent.glob("v*-queues"))
each_store = pytest.mark.parametrize("root", ROOTS, ids=lambda root: root.name)


def _expected(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / "expected.json").read_text())
    return found


def _bodies(root: Path) -> Iterator[tuple[int, bytes]]:
    for path in sorted(root.rglob("*.log")):
        file = PosixFileSystem().open(str(path), "read")
        for _, header, body in frames(file, int(path.stem), 0):
            if header.type == FrameType.GROUP:
                yield header.base_offset, body
        file.close()


@each_store
@pytest.mark.parametrize("read_only", [True, False])
def test_a_golden_store_is_read_as_it_was_written(
    root: Path, tmp_path: Path, read_only: bool
) -> None:
    """From its snapshot and the log after it, by a writer and by a reader."""
    shutil.copytree(root, tmp_path / "store")
    (tmp_path / "store" / "expected.json").unlink()
    wanted = _expected(root)
    store = Store(
        tmp_path / "store", StoreOptions.build({}, {}), read_only=read_only,
        clock=ManualClock(wanted["now"]), background=False,
    )  # fmt: skip
    assert store.damage is None
    assert expected(store) == wanted
    store.close()


@each_store
def test_a_golden_store_is_read_from_its_log_alone(root: Path, tmp_path: Path) -> None:
    """Snapshot and replay come to what replay alone comes to."""
    shutil.copytree(root, tmp_path / "store")
    (tmp_path / "store" / "expected.json").unlink()
    shutil.rmtree(tmp_path / "store" / "snapshots")
    wanted = _expected(root)
    store = Store(
        tmp_path / "store", StoreOptions.build({}, {}), clock=ManualClock(wanted["now"]),
        background=False,
    )  # fmt: skip
    assert expected(store) == wanted
    store.close()


@each_store
def test_golden_group_frames_are_written_as_they_were(root: Path) -> None:
    """To the byte."""
    bodies = list(_bodies(root))
    assert len(bodies) > 10
    for number, body in bodies:
        assert number >= 1
        group, deliveries, cursor, leases, consumed, text = decode_group(body)
        again = encode_group(
            group, deliveries, cursor, leases, consumed, description=text.description,
            seek=text.seek, is_dropped=text.is_dropped,
        )  # fmt: skip
        assert again == body


def test_the_newest_golden_store_is_what_would_be_made_now() -> None:
    """Repeated calls give the same result, in files of the same names and sizes."""
    root = ROOTS[-1]
    made = files()
    assert made["expected.json"] == (root / "expected.json").read_bytes()
    sizes = {str(path.relative_to(root)): path.stat().st_size for path in root.rglob("*.*")}
    assert {name: len(data) for name, data in made.items() if "." in name} == sizes


@each_store
def test_golden_snapshots_are_written_as_they_were(root: Path) -> None:
    """To the byte, groups and queues included."""
    paths = sorted(root.rglob("*.snap"))
    assert paths
    for path in paths:
        snapshot = decode_snapshot(path.read_bytes())
        assert len(snapshot.groups.groups) == 5
        assert len(snapshot.queues.queues) == 2
        assert encode_snapshot(snapshot) == path.read_bytes()
