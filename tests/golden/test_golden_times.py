"""Records that were given earlier times are read as they were written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import stratalog
from tests.golden.times import GOLDEN, facts


def test_event_times_are_read_and_the_store_goes_on(tmp_path: Path) -> None:
    """From the log and from segments, before and after they are rewritten."""
    root = tmp_path / "data"
    shutil.copytree(GOLDEN, root)
    expected = json.loads((root / "expected.json").read_text())["records"]
    (root / "expected.json").unlink()
    assert any(event < time for _, time, event in expected)
    assert stratalog.verify(root).ok
    with stratalog.open(root) as store:
        assert facts(store) == expected
        store.topic("readings").delete(offsets=[0])
        store.compact(purge=True)
        assert facts(store) == expected[1:]
    assert stratalog.verify(root).ok
