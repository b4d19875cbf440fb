"""Names on disk, and names of topics."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stratalog.errors import OptionError, TooLargeError, WrongTypeError
from stratalog.format.names import (
    ColdName,
    check_topic_name,
    claim_path,
    claim_temp_path,
    cold_directory,
    cold_name,
    cold_prefix,
    free_file_path,
    lock_path,
    log_file_path,
    log_path,
    old_cold_name,
    parse_cold_name,
    parse_numbered,
    parse_shard,
    parse_topic,
    segment_name,
    shard_path,
    snapshot_path,
    snapshots_path,
    store_path,
    store_temp_path,
    topic_path,
    topics_path,
)


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def test_paths_are_what_the_format_says() -> None:
    """They are on users' disks: they do not change."""
    assert store_path("/s") == "/s/store"
    assert store_temp_path("/s") == "/s/store.tmp"
    assert lock_path("/s") == "/s/lock"
    assert log_path("/s") == "/s/log"
    assert shard_path("/s", 3) == "/s/log/shard-03"
    assert log_file_path("/d", 4096) == "/d/00000000000000004096.log"
    assert free_file_path("/d", 4096) == "/d/00000000000000004096.free"
    assert topics_path("/s") == "/s/topics"
    assert topic_path("/s", 0xABC) == "/s/topics/0000000000000abc"
    assert segment_name(4096) == "00000000000000004096.seg"
    assert segment_name(4096, ".open") == "00000000000000004096.open"
    assert claim_path("/s") == "/s/claim"
    assert claim_temp_path("/s") == "/s/claim.tmp"
    assert old_cold_name(0xABC, 4096) == "0000000000000abc/00000000000000004096.seg"
    directory = cold_directory(bytes(range(16)), b"incarnat")
    assert directory == "000102030405060708090a0b0c0d0e0f-696e6361726e6174"
    assert cold_name(directory, 0xABC, 4096, 0xC0FFEE) == (
        f"{directory}/0000000000000abc-00000000000000004096-0000000000c0ffee.seg"
    )
    assert snapshots_path("/s") == "/s/snapshots"
    assert snapshot_path("/s", 12) == "/s/snapshots/00000000000000000012.snap"
    assert snapshot_path("/s", 12, ".tmp") == "/s/snapshots/00000000000000000012.tmp"


@pytest.mark.parametrize("shard", [0, 7, 10, 99, 100, 255])
def test_a_shard_is_found_by_its_path(shard: int) -> None:
    """A name that was written is parsed, with two digits and with three."""
    assert parse_shard(_name(shard_path("/s", shard))) == shard


@pytest.mark.parametrize(
    "name",
    ["shard", "shard-", "shard-x", "shard--1", "shard-0", "shard-007", "shard-1 ", "Shard-01",
     "shard-٣٣", "shard-²²", "x-01", "01", "shard-01.bak", "shard-01-02"],
)  # fmt: skip
def test_what_is_no_shard_is_left_alone(name: str) -> None:
    """Other directories, and other spellings of the same number, are not ours."""
    assert parse_shard(name) is None


@pytest.mark.parametrize("lsn", [0, 4096, (1 << 63) - 1, (1 << 64) - 1])
def test_a_log_file_is_found_by_its_path(lsn: int) -> None:
    """Twenty digits hold any lsn, and sort as it does."""
    assert parse_numbered(_name(log_file_path("/d", lsn))) == lsn
    assert parse_numbered(_name(free_file_path("/d", lsn)), ".free") == lsn


@pytest.mark.parametrize("id", [0, 7, 0xABCDEF, (1 << 63) - 1, (1 << 64) - 1])
def test_a_topic_is_found_by_its_path(id: int) -> None:
    """Sixteen hexadecimal digits hold any id; the old name in the cold store starts the same."""
    assert parse_topic(_name(topic_path("/s", id))) == id
    assert parse_topic(old_cold_name(id, 5).partition("/")[0]) == id


@pytest.mark.parametrize("number", [0, 7, 0xABCDEF, (1 << 63) - 1, (1 << 64) - 1])
def test_a_name_in_the_cold_store_says_whose_and_what_it_is(number: int) -> None:
    """A name that was written is parsed, and begins as all objects of the topic do."""
    identity = bytes(range(100, 116))
    directory = cold_directory(identity, bytes(8))
    name = cold_name(directory, number, number, number)
    assert parse_cold_name(name) == ColdName(identity, directory, number, number, number)
    assert name.startswith(cold_prefix(directory, number))


@pytest.mark.parametrize(
    "change",
    [
        lambda name: "", lambda name: name + "\n", lambda name: name.upper(),
        lambda name: name.removesuffix(".seg"), lambda name: name + ".tmp",
        lambda name: name.replace("/", "-"), lambda name: name.replace("-", "/"),
        lambda name: "/" + name, lambda name: name[1:], lambda name: "../" + name,
        lambda name: old_cold_name(7, 7),
    ],
)  # fmt: skip
def test_what_is_no_name_in_the_cold_store_says_nothing(change: Callable[[str], str]) -> None:
    """Other objects, other spellings, and the names that earlier releases gave."""
    assert parse_cold_name(change(cold_name(cold_directory(bytes(16), bytes(8)), 7, 7, 7))) is None


@pytest.mark.parametrize(
    "name",
    ["", "7", "0000000000000ABC", "000000000000000g", "00000000000000007", "+00000000000007f",
     "0x0000000000007f", "0000000000000_7f", "000000000000007 ", "٣" * 16,
     "000000000000007\n"],
)  # fmt: skip
def test_what_is_no_topic_is_left_alone(name: str) -> None:
    """Other directories, and other spellings of the same number, are not ours."""
    assert parse_topic(name) is None


@pytest.mark.parametrize("number", [0, 1, 4096, (1 << 63) - 1, (1 << 64) - 1])
def test_segments_and_snapshots_are_found_by_their_names(number: int) -> None:
    """A name that was written is parsed, and by its own suffix only."""
    names = {suffix: segment_name(number, suffix) for suffix in (".seg", ".open", ".tmp")}
    names[".snap"] = _name(snapshot_path("/s", number))
    for suffix, name in names.items():
        for other in names:
            assert parse_numbered(name, other) == (number if suffix == other else None)


def test_names_sort_as_their_numbers_do() -> None:
    """So that a directory that is listed is in order."""
    numbers = [0, 9, 10, 99, 4096, 1 << 40, (1 << 64) - 1]
    names = [segment_name(number) for number in numbers]
    assert names == sorted(names)


@pytest.mark.parametrize(
    "name",
    ["", ".log", "1.log", "00000000000000004096", "00000000000000004096.free",
     "000000000000000004096.log", "0000000000000000409x.log", "00000000000000004096.log.log",
     "-0000000000000004096.log", "٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٤٠٩٦.log", "00000000000000004096.logx"],
)  # fmt: skip
def test_what_is_no_log_file_is_left_alone(name: str) -> None:
    """A backup or an editor's file beside the log is not replayed."""
    assert parse_numbered(name) is None


@pytest.mark.parametrize(
    "name", ["a", "orders", "../../etc/passwd", "a b", "größe", "注文", "🙂", "é" * 127, "x" * 255]
)
def test_any_printable_name_is_good(name: str) -> None:
    """A name is never a path, so it may look like one."""
    assert check_topic_name(name) == name


@pytest.mark.parametrize("name", ["", "a\0b", "a\nb", "\t", "\x7f", "a\u202eb", "\ud800"])
def test_a_name_that_cannot_be_printed_is_refused(name: str) -> None:
    """Nothing invisible, nothing that turns a terminal around, nothing that is not UTF-8."""
    with pytest.raises(OptionError, match=r"cannot be printed|is empty: give it"):
        check_topic_name(name)


@pytest.mark.parametrize("name", ["x" * 256, "é" * 128, "🙂" * 64])
def test_a_name_too_long_is_refused_with_the_limit(name: str) -> None:
    """Bytes count, not characters."""
    with pytest.raises(TooLargeError, match=r"256 bytes is too long: the limit is 255"):
        check_topic_name(name)


@pytest.mark.parametrize("name", [None, b"orders", 5, ["a"]])
def test_a_name_that_is_not_text_is_refused(name: object) -> None:
    """The message shows what came."""
    with pytest.raises(WrongTypeError, match="a topic name is text"):
        check_topic_name(name)
