"""Lakes that past releases wrote are read by this one.

`scripts/make_golden_lake.py` made the files. They are never made again: if a test here fails, the
format has changed, and what changed is the code.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.format.lake import (
    decode_lake,
    decode_lake_manifest,
    encode_lake,
    encode_lake_manifest,
)
from stratalog.format.snapshot import decode_snapshot, encode_snapshot
from tests.golden.lake import BODY, MANIFEST, SNAPSHOT, files

ROOTS = sorted(Path(__file__).parent.glob("v*-lake"))
each_release = pytest.mark.parametrize("root", ROOTS, ids=lambda root: root.name)


@each_release
def test_golden_lakes_are_read_as_they_were_written(root: Path) -> None:
    """Every field, and written again to the byte."""
    manifest, body, snapshot = (
        (root / name).read_bytes() for name in ("manifest.lake", "frame.body", "lakes.snap")
    )
    assert decode_lake_manifest(manifest) == MANIFEST
    assert encode_lake_manifest(decode_lake_manifest(manifest)) == manifest
    assert decode_lake(body) == BODY
    assert encode_lake(decode_lake(body)) == body
    assert decode_snapshot(snapshot) == SNAPSHOT
    assert encode_snapshot(decode_snapshot(snapshot)) == snapshot


def test_the_newest_golden_lake_is_what_would_be_made_now() -> None:
    """Equal values give equal bytes."""
    root = ROOTS[-1]
    assert files() == {path.name: path.read_bytes() for path in root.iterdir()}
