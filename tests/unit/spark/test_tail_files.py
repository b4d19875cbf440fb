"""Files of newest records go once nothing reads them, and not before."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from stratalog.spark import tail_files


def test_a_file_is_removed_once_it_is_unused_and_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Young ones stay, used ones stay, and one whose session has ended is forgotten."""
    monkeypatch.setattr(tail_files, "_tails", {})
    used = {"a": False, "b": True}
    paths = {name: tmp_path / name for name in (*used, "c")}

    def is_unused(name: str) -> bool:
        if name == "c":
            raise ConnectionRefusedError("the session has ended")
        return not used[name]

    for name, path in paths.items():
        path.write_bytes(b"x")
        tail_files.add_tail(str(path), None, 0.0)
        tail_files.keep_until(str(path), partial(is_unused, name))
    tail_files.remove_unused(599.0)
    assert all(path.exists() for path in paths.values())
    tail_files.remove_unused(600.0)
    assert [name for name, path in paths.items() if path.exists()] == ["b"]
    used["b"] = False
    tail_files.remove_unused(601.0)
    assert not paths["b"].exists()
