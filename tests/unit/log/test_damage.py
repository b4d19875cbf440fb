"""Torn tails are cut and reported; damage is named, refused for writing, and never served."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from tests.conftest import OpenStore

from stratalog.errors import CorruptionError, DamagedError, UnsupportedVersionError
from stratalog.format.frame import encode_header, log_seed
from stratalog.fs import PosixFileSystem
from stratalog.model import Record
from stratalog.state.identity import read_store_file


def log_files(root: Path) -> list[Path]:
    """All log files that hold something."""
    return sorted(path for path in root.glob("log/*/*.log") if path.read_bytes().strip(b"\0"))


def fill(open_store: OpenStore, root: Path, **options: object) -> list[Path]:
    """A store with ten records, closed; returns its log files."""
    with open_store(root, shards=1, **options) as store:
        for number in range(10):
            store.topic("orders").append(b"order number %d" % number)
    return log_files(root)


def overwrite(path: Path, position: int, data: bytes) -> None:
    """Change bytes of a file."""
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def place_of(path: Path, value: bytes) -> int:
    """Position of a value in a file."""
    return path.read_bytes().index(value)


def end_of(path: Path) -> int:
    """Where the frames of a file end, rounded up."""
    return len(path.read_bytes().rstrip(b"\0")) + 7 & ~7


def test_a_torn_tail_is_cut_and_reported(
    open_store: OpenStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Half a frame after the last whole one is what a crash leaves: it is cut, and reported."""
    (path,) = fill(open_store, tmp_path / "data")
    end = end_of(path)
    overwrite(path, end, path.read_bytes()[128:180])
    with caplog.at_level(logging.WARNING, "stratalog"):
        store = open_store(tmp_path / "data")
    assert store.damage is None
    assert f"position {end}" in caplog.text
    assert store.stats().torn_bytes > 0
    assert len(store.topic("orders")) == 10
    assert store.topic("orders").append(b"goes on") == 10


def test_zeros_behind_the_last_frame_are_no_tail(open_store: OpenStore, tmp_path: Path) -> None:
    """Prepared space is not reported as torn."""
    fill(open_store, tmp_path / "data")
    assert open_store(tmp_path / "data").stats().torn_bytes == 0


@pytest.mark.parametrize("read_only", [False, True])
def test_damage_with_durable_frames_behind_it_is_no_tail(
    open_store: OpenStore, tmp_path: Path, read_only: bool
) -> None:
    """A flipped bit in the middle: file, position and offsets are named, nothing is written."""
    (path,) = fill(open_store, tmp_path / "data")
    overwrite(path, place_of(path, b"order number 4"), b"X")
    before = path.read_bytes()
    store = open_store(tmp_path / "data", read_only=read_only)
    assert store.is_read_only
    assert store.damage is not None
    assert str(path) in store.damage
    assert "lacks offsets 4 to 4" in store.damage
    topic = store.topic("orders")
    if not read_only:
        with pytest.raises(DamagedError, match="lacks offsets 4 to 4"):
            topic.append(b"no")
    assert topic.read_values(0, 4) == [b"order number %d" % n for n in range(4)]
    assert topic.read_values(5) == [b"order number %d" % n for n in range(5, 10)]
    with pytest.raises(CorruptionError, match="offsets 4 to 4"):
        list(topic.read())
    store.close()
    assert path.read_bytes() == before


def test_zeros_over_a_durable_frame_are_damage(open_store: OpenStore, tmp_path: Path) -> None:
    """A page that was lost does not look like the end of the log."""
    (path,) = fill(open_store, tmp_path / "data")
    position = place_of(path, b"order number 2") - 72
    overwrite(path, position, bytes(64))
    store = open_store(tmp_path / "data")
    assert store.damage is not None
    assert "offsets 2 to 2" in store.damage


def test_damage_in_a_file_that_has_a_successor_is_found(
    open_store: OpenStore, tmp_path: Path
) -> None:
    """The next file's name says where this one must end, also for its last frame."""
    files = fill(open_store, tmp_path / "data", log_file_bytes=4096, record_bytes_max=4096)
    with open_store(tmp_path / "data", shards=1, log_file_bytes=4096) as store:
        for number in range(10, 60):
            store.topic("orders").append(b"order number %d" % number)
    files = log_files(tmp_path / "data")
    assert len(files) > 1
    overwrite(files[0], end_of(files[0]) - 12, b"XX")
    store = open_store(tmp_path / "data")
    assert store.damage is not None
    assert str(files[0]) in store.damage


def test_a_missing_log_file_is_damage(open_store: OpenStore, tmp_path: Path) -> None:
    """A deleted file leaves a hole in the offsets, and that is said."""
    with open_store(tmp_path / "data", shards=1, log_file_bytes=4096) as store:
        for number in range(150):
            store.topic("orders").append(b"order number %d" % number)
    files = log_files(tmp_path / "data")
    assert len(files) > 2
    files[1].unlink()
    store = open_store(tmp_path / "data")
    assert store.damage is not None
    assert "lacks offsets" in store.damage


def test_bytes_that_change_under_an_open_store_are_not_served(
    open_store: OpenStore, tmp_path: Path
) -> None:
    """Every read verifies: rot that comes later is an error with a place."""
    store = open_store(tmp_path / "data", shards=1)
    topic = store.topic("orders")
    for number in range(5):
        topic.append(b"order number %d" % number)
    (path,) = log_files(tmp_path / "data")
    overwrite(path, place_of(path, b"order number 3"), b"X")
    assert topic.read_values(0, 3) == [b"order number %d" % n for n in range(3)]
    with pytest.raises(CorruptionError, match=r"position \d+.*offsets 3 to 3"):
        topic.read_values()
    with pytest.raises(CorruptionError):
        topic.read_arrow().read_all()


def test_a_value_that_looks_like_a_frame_is_only_a_value(
    open_store: OpenStore, tmp_path: Path
) -> None:
    """A log stored inside of a log is not replayed, not even from a torn tail."""
    inner = encode_header(2, 0, 0, 0, 99, 0, 0, 0, 0, 0)
    with open_store(tmp_path / "data", shards=1) as store:
        store.topic("orders").append(inner * 3)
    store = open_store(tmp_path / "data")
    assert store.topics() == ["orders"]
    assert [r.value for r in store.topic("orders").read() if isinstance(r, Record)] == [inner * 3]


def test_a_frame_of_a_newer_version_is_refused_not_cut(
    open_store: OpenStore, tmp_path: Path
) -> None:
    """Data of a newer release is neither damage nor a tail: it is left alone."""
    from xxhash import xxh3_64_intdigest

    (path,) = fill(open_store, tmp_path / "data")
    end = end_of(path)
    header = bytearray(encode_header(1, 0, 0, 0, 1, 0, 0, 0, 0, 0))
    header[4] = 2
    header[56:60] = bytes(4)
    seed = log_seed(read_store_file(PosixFileSystem(), str(tmp_path / "data")).identity, 0, 0)
    header[56:60] = (xxh3_64_intdigest(bytes(header), seed) & 0xFFFFFFFF).to_bytes(4, "little")
    overwrite(path, end, bytes(header))
    before = path.read_bytes()
    with pytest.raises(UnsupportedVersionError, match=f"position {end}.*upgrade"):
        open_store(tmp_path / "data")
    assert path.read_bytes() == before
