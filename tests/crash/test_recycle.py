"""Recycled log files: what they held before never comes back, whatever a crash leaves."""

from __future__ import annotations

import contextlib

from stratalog.format.frame import FrameHeader, FrameType
from stratalog.format.names import parse_numbered
from stratalog.log.commit_group import Entry
from stratalog.log.files import LogFiles
from stratalog.log.reader import LogReader
from stratalog.log.scan import ShardScanner
from stratalog.options import StoreOptions
from stratalog.testing import Crashed, FakeDisk, MonitorFs

DIRECTORY = "/log"
OPTIONS = StoreOptions(log_file_bytes=4096, log_chunk_bytes=4096, disk_reserve_bytes=0)


def entry(number: int) -> Entry:
    """A frame that can be told from all others, of one of three sizes."""
    return Entry(FrameType.RESERVE, 1, bytes([number % 251]) * (8 * (1 + number % 3)), number)


def write_and_release(disk: FakeDisk, written: list[int], synced: list[int]) -> None:
    """Fill files, give the oldest up while going on, so that each is used several times."""
    fs = MonitorFs(disk)
    files = LogFiles(fs, LogReader(fs), DIRECTORY, OPTIONS, -1, 0, lambda: None)
    for number in range(400):
        group = [entry(number)]
        is_synced = number % 5 == 0
        files.fit(group, 0)
        written.append(number)
        end = files.write(group, sync=is_synced)
        files.position = end
        files.synced = end if is_synced else files.synced
        if is_synced:
            synced.append(number)
        if number % 90 == 89:
            files.sync()
            synced.append(number)
            files.release(files.first_lsn)
    fs.check()


def scan(disk: FakeDisk) -> list[int]:
    """The numbers of all frames that replay would see, in order; there is no damage."""
    found: list[int] = []

    def apply(_: str, lsn: int, position: int, header: FrameHeader, body: bytes) -> None:
        assert body == entry(header.base_offset).body
        found.append(header.base_offset)

    lsns = [parse_numbered(name) for name in disk.listdir(DIRECTORY)]
    scanner = ShardScanner(
        disk, DIRECTORY, min((lsn for lsn in lsns if lsn is not None), default=0)
    )
    scanner.advance(apply)
    assert not scanner.damages, scanner.damages
    return found


def test_frames_of_a_recycled_file_never_come_back() -> None:
    """The newest numbers are found, without a hole, up to a synced one or later."""
    operations = FakeDisk()
    write_and_release(operations, [], [])
    assert any(path.endswith(".free") for path in operations.image()), "nothing was recycled"
    for point in range(0, operations.operations, 7):
        written: list[int] = []
        synced: list[int] = []
        disk = FakeDisk(crash_after=point)
        with contextlib.suppress(Crashed):
            write_and_release(disk, written, synced)
        for seed in range(3):
            found = scan(disk.crash(seed))
            assert found == list(range(found[0], found[0] + len(found))) if found else True
            if synced:
                assert found, f"crash after {point}: everything is gone"
                assert found[-1] >= synced[-1]
            assert set(found) <= set(written)
