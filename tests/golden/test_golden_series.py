"""Series that past releases wrote are read by this one.

`scripts/make_golden_series.py` made them. They are never made again: if a test here fails, the
format has changed, and what changed is the code.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from stratalog.handles.store import Store
from stratalog.options import StoreOptions
from stratalog.testing import ManualClock
from tests.golden.series import expected, files

ROOTS = sorted(Path(__file__).parent.glob("v*-series"))


def test_there_is_a_golden_store() -> None:
    """Or the tests below would test nothing."""
    assert ROOTS


@pytest.mark.parametrize("root", ROOTS, ids=lambda root: root.name)
@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("has_snapshot", [True, False])
def test_golden_series_are_read_as_they_were_written(
    root: Path, tmp_path: Path, read_only: bool, has_snapshot: bool
) -> None:
    """From the snapshot and the log after it, and from records alone."""
    shutil.copytree(root, tmp_path / "store")
    (tmp_path / "store" / "expected.json").unlink()
    wanted = json.loads((root / "expected.json").read_text())
    store = Store(
        tmp_path / "store", StoreOptions.build({}, {}), read_only=read_only,
        clock=ManualClock(wanted["now"]), background=False,
    )  # fmt: skip
    assert store.damage is None
    if not has_snapshot:
        for name in store.series_names():
            store.series(name).state.reset()
    assert expected(store) == wanted
    store.close()


def test_the_newest_golden_store_is_what_is_written_today() -> None:
    """Byte for byte, so that a change of the format is noticed."""
    made = files()
    root = ROOTS[-1]
    assert {name: (root / name).read_bytes() for name in made} == made
