"""Tables that past releases wrote are read by this one.

`scripts/make_golden_tables.py` made them. They are never made again: if a test here fails, the
format has changed, and what changed is the code.
"""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest

from stratalog.handles.store import Store
from stratalog.options import StoreOptions
from stratalog.state.table_projection import TableProjection
from stratalog.testing import ManualClock
from tests.golden.tables import expected, files

ROOTS = sorted(Path(__file__).parent.glob("v*-tables"))


def test_there_is_a_golden_store() -> None:
    """Or the tests below would test nothing."""
    assert ROOTS
    assert all(list(root.glob("topics/*/*.state")) for root in ROOTS)


@pytest.mark.parametrize("root", ROOTS, ids=lambda root: root.name)
@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("has_state", [True, False])
def test_golden_tables_are_read_as_they_were_written(
    root: Path,
    tmp_path: Path,
    read_only: bool,
    has_state: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """From the state file and the log after it, and from records alone."""
    shutil.copytree(root, tmp_path / "store")
    (tmp_path / "store" / "expected.json").unlink()
    wanted = json.loads((root / "expected.json").read_text())
    store = Store(
        tmp_path / "store", StoreOptions.build({}, {}), read_only=read_only,
        clock=ManualClock(wanted["now"]), background=False,
    )  # fmt: skip
    assert store.damage is None
    projection = store.log_named("users").projection
    assert isinstance(projection, TableProjection)
    assert projection._pointer is not None
    if not has_state:
        for name in store.tables():
            store.rebuild(name)
    with caplog.at_level(logging.WARNING):
        assert expected(store) == wanted
    assert "made again" not in caplog.text
    assert (projection._pointer is not None) == has_state
    store.close()


def test_the_newest_golden_store_is_what_is_written_today() -> None:
    """Byte for byte, so that a change of the format is noticed."""
    made = files()
    root = ROOTS[-1]
    assert {name: (root / name).read_bytes() for name in made} == made
