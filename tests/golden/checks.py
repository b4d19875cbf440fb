"""Steps that tests of golden stores share: read one, and make it again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from stratalog.format.frame import HEADER_BYTES, FrameHeader, FrameType
from stratalog.format.multi import decode_multi
from stratalog.fs import PosixFileSystem
from stratalog.handles.store import Store
from stratalog.log.scan import frames
from stratalog.options import StoreOptions
from stratalog.testing import ManualClock


def all_frames(root: Path) -> Iterator[tuple[FrameHeader, bytes]]:
    """Every frame, and those inside of others."""
    for path in sorted(root.rglob("*.log")):
        file = PosixFileSystem().open(str(path), "read")
        for _, header, body in frames(file, int(path.stem), 0):
            yield header, body
            if header.type == FrameType.MULTI:
                for at, inner in decode_multi(header, body, int(path.stem)):
                    start = at + HEADER_BYTES
                    yield inner, body[start : start + inner.body_length]
        file.close()


def check_read(
    root: Path, path: Path, expected: Callable[[Store], dict[str, Any]], *, read_only: bool
) -> None:
    """Open a copy at the time at which it was made, and compare."""
    shutil.copytree(root, path / "store")
    wanted: dict[str, Any] = json.loads((root / "expected.json").read_text())
    clock = ManualClock()
    clock.jump(wanted["now"] / 1e9 - clock.time_ns() / 1e9)
    store = Store(
        path / "store", StoreOptions.build({"shards": 2}, {}), read_only=read_only,
        clock=clock, background=False,
    )  # fmt: skip
    found = json.loads(json.dumps(expected(store)))
    del found["now"], wanted["now"]
    assert found == wanted
    store.close()


def check_made(root: Path, made: dict[str, bytes]) -> None:
    """Repeated calls give the same result, in files of the same names and sizes."""
    assert made["expected.json"] == (root / "expected.json").read_bytes()
    sizes = {str(path.relative_to(root)): path.stat().st_size for path in root.rglob("*.*")}
    assert {name: len(data) for name, data in made.items() if "." in name} == sizes
