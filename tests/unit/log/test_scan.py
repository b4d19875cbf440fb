"""Scanning beside a live writer: what comes while one looks is not damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.conftest import OpenStore

from stratalog.format.frame import FrameHeader
from stratalog.fs import PosixFileSystem
from stratalog.log.scan import ShardScanner


class LateFile:
    """A file of which the first read sees only the beginning: the rest is written after it."""

    def __init__(self, inner: Any, visible: int) -> None:
        self._inner = inner
        self._visible: int | None = visible
        self.path = inner.path

    def pread(self, length: int, position: int) -> bytes:
        data: bytes = self._inner.pread(length, position)
        if self._visible is not None:
            data = data[: max(0, self._visible - position)].ljust(len(data), b"\0")
            self._visible = None
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class LateFs(PosixFileSystem):
    """Opens files as `LateFile`."""

    def __init__(self, visible: int) -> None:
        self._visible = visible

    def open(self, path: str, mode: Any) -> Any:
        return LateFile(super().open(path, mode), self._visible)


def test_frames_written_during_a_scan_are_not_taken_for_damage(
    open_store: OpenStore, tmp_path: Path
) -> None:
    """A reader looked, found the end, and only then the writer added several durable frames.

    The last of them says that everything before it was durable, and the first was not there when
    it was looked for: a reader beside a live writer took that for damage.
    """
    with open_store(shards=1) as store:
        ends = []
        for number in range(6):
            store.topic("orders").append(b"order %d" % number)
            assert store._log is not None
            ends.append(store._log.shards[0].files.position)
    for visible in ends:
        offsets: list[int] = []

        def apply(_: str, lsn: int, at: int, header: FrameHeader, body: bytes) -> None:
            if header.count:
                offsets.append(header.base_offset)  # noqa: B023

        scanner = ShardScanner(LateFs(visible), str(tmp_path / "data" / "log" / "shard-00"))
        scanner.advance(apply)
        assert scanner.damages == []
        scanner.advance(apply)
        assert offsets == list(range(6))
