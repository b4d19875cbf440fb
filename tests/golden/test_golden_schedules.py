"""Schedules that past releases wrote are read by this one.

`scripts/make_golden_schedules.py` made them. They are never made again: if a test here fails, the
format has changed, and what changed is the code.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.format.frame import FrameType
from stratalog.format.schedules import decode_due, decode_schedule, encode_due, encode_schedule
from stratalog.format.snapshot import decode_snapshot, encode_snapshot
from tests.golden.checks import all_frames, check_made, check_read
from tests.golden.schedules import expected, files

ROOTS = sorted(Path(__file__).parent.glob("v*-schedules"))
each_store = pytest.mark.parametrize("root", ROOTS, ids=lambda root: root.name)


@each_store
@pytest.mark.parametrize("read_only", [True, False])
def test_a_golden_store_is_read_as_it_was_written(
    root: Path, read_only: bool, tmp_path: Path
) -> None:
    """Schedules with all their numbers, and the messages they put."""
    check_read(root, tmp_path, expected, read_only=read_only)


@each_store
def test_golden_frames_are_written_as_they_were(root: Path) -> None:
    """To the byte: what schedules are, and what they have put."""
    seen = []
    for header, body in all_frames(root):
        if header.type == FrameType.SCHEDULE:
            assert encode_schedule(decode_schedule(body)) == body
        elif header.type == FrameType.DUE:
            assert encode_due(*decode_due(body)) == body
        seen.append(header.type)
    assert seen.count(FrameType.SCHEDULE) >= 5
    assert seen.count(FrameType.DUE) >= 4


@each_store
def test_golden_snapshots_are_written_as_they_were(root: Path) -> None:
    """To the byte, schedules included."""
    paths = sorted(root.rglob("*.snap"))
    assert paths
    for path in paths:
        snapshot = decode_snapshot(path.read_bytes())
        assert len(snapshot.schedules.schedules) == 3
        assert encode_snapshot(snapshot) == path.read_bytes()


def test_the_newest_golden_store_is_what_would_be_made_now() -> None:
    """Repeated calls give the same result, in files of the same names and sizes."""
    check_made(ROOTS[-1], files())
