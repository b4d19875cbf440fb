"""Routes that past releases wrote are read by this one.

`scripts/make_golden_routes.py` made them. They are never made again: if a test here fails, the
format has changed, and what changed is the code.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.format.frame import FrameType
from stratalog.format.routes import decode_forward, decode_route, encode_forward, encode_route
from stratalog.format.snapshot import decode_snapshot, encode_snapshot
from tests.golden.checks import all_frames, check_made, check_read
from tests.golden.routes import expected, files

ROOTS = sorted(Path(__file__).parent.glob("v*-routes"))
each_store = pytest.mark.parametrize("root", ROOTS, ids=lambda root: root.name)


@each_store
@pytest.mark.parametrize("read_only", [True, False])
def test_a_golden_store_is_read_as_it_was_written(
    root: Path, read_only: bool, tmp_path: Path
) -> None:
    """Routes with all their numbers, and the records of all topics."""
    check_read(root, tmp_path, expected, read_only=read_only)


@each_store
def test_golden_frames_are_written_as_they_were(root: Path) -> None:
    """To the byte: what routes are, and how far they came."""
    seen = []
    for header, body in all_frames(root):
        if header.type == FrameType.ROUTE:
            assert encode_route(decode_route(body)) == body
        elif header.type == FrameType.FORWARD:
            assert encode_forward(*decode_forward(body)) == body
        seen.append(header.type)
    assert seen.count(FrameType.ROUTE) >= 5
    assert seen.count(FrameType.FORWARD) >= 4


@each_store
def test_golden_snapshots_are_written_as_they_were(root: Path) -> None:
    """To the byte, routes included."""
    paths = sorted(root.rglob("*.snap"))
    assert paths
    for path in paths:
        snapshot = decode_snapshot(path.read_bytes())
        assert len(snapshot.routes.routes) == 3
        assert encode_snapshot(snapshot) == path.read_bytes()


def test_the_newest_golden_store_is_what_would_be_made_now() -> None:
    """Repeated calls give the same result, in files of the same names and sizes."""
    check_made(ROOTS[-1], files())
