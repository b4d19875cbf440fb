"""Wrong arguments, or subclasses of the right types: refused with a reason, or accepted."""

from __future__ import annotations

import copy
import enum
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import OpenStore

import stratalog
from stratalog import NotAStoreError, OptionError, Record, TooLargeError, WrongTypeError
from stratalog.model import NO_HEADERS


class Names(enum.StrEnum):
    """Topics of a program."""

    ORDERS = "orders"


@pytest.mark.parametrize("path", [5, None, b"bytes"])
def test_a_path_is_text(path: Any) -> None:
    """The message has what was given."""
    with pytest.raises(WrongTypeError, match=r"a path is text or a pathlib\.Path, not"):
        stratalog.open(path)


def test_a_path_has_no_zero() -> None:
    """No file system takes one."""
    with pytest.raises(OptionError, match="has a zero in it"):
        stratalog.open("a\0b")


# `stratalog.open("")` once made a store in the current directory.
@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("", OptionError),
        ("\ud800", OptionError),
        ("x" * 256, TooLargeError),
        ("ü" * 128, TooLargeError),
        ("d/" * 2048, TooLargeError),
    ],
)
@pytest.mark.parametrize("call", [stratalog.open, stratalog.verify, stratalog.repair])
def test_a_path_that_names_no_directory_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: Callable[[Any], Any],
    path: str,
    error: type[Exception],
) -> None:
    """An empty path, one that cannot be encoded, and one that is too long; nothing is made."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error):
        call(path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_no_store(tmp_path: Path) -> None:
    """Nor is anything below it."""
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(NotAStoreError, match="cannot be a store, which is a directory"):
            stratalog.open(path)


def test_the_cold_store_is_text(tmp_path: Path) -> None:
    """As the path of the store is."""
    with pytest.raises(WrongTypeError, match=r"a path is text or a pathlib\.Path, not int: 5"):
        stratalog.open(tmp_path / "data", cold=5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda topic: topic.append_many(5), "append_many takes a list of records, not int: 5"),
        (lambda topic: topic.append_many(7), "takes a list of records, not int: 7"),
        (lambda topic: topic.append_many(b"one"), "use append for one"),
        (lambda topic: topic.read_arrow(columns=5), "columns=5 must be a list of names"),
        (lambda topic: topic.watch(timeout="1"), "timeout='1' must be 0 or more seconds, or None"),
    ],
)
def test_the_wrong_type_is_told_so(
    tmp_path: Path, call: Callable[[Any], Any], message: str
) -> None:
    """By an error of ours, and the topic goes on."""
    with stratalog.open(tmp_path / "data") as store:
        topic = store.topic("t")
        with pytest.raises(stratalog.UsageError, match=message):
            call(topic)
        assert topic.append(b"0") == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", [Names.ORDERS, np.str_("orders")])
def test_names_may_be_of_a_class_of_their_own(tmp_path: Path, name: Any) -> None:
    """Topics, queues, groups and consumers are called what the text says."""
    with stratalog.open(tmp_path / "data") as store:
        store.topic(name).append(b"a")
        group = store.topic("orders").group(name)
        group.ack(group.poll(name, 1))
        queue = store.queue(str(name) + "-jobs")
        queue.put(b"job")
        with store.batch() as batch:
            batch.topic(name).append(b"b")
        assert [type(found) for found in store.topics()] == [str, str]
    with stratalog.open(tmp_path / "data") as store:
        assert store.topic("orders").read_values() == [b"a", b"b"]
        assert store.topic("orders").group("orders").lag == 1


@pytest.mark.parametrize(
    "record", [Record(b"v"), Record(b"v", b"k", {"h": b"1"}, "tag", "node", 5, 7, 1, 2, 3, 1)]
)
def test_records_can_be_pickled_and_copied(record: Record) -> None:
    """To be sent to another process, for one."""
    for other in (pickle.loads(pickle.dumps(record)), copy.copy(record), copy.deepcopy(record)):
        assert other == record
        assert (other.headers is NO_HEADERS) == (record.headers is NO_HEADERS)


class Offset(int):
    """A number of a class derived from int, as an application may have."""


class Word(str):
    """Text of a class derived from str, as NumPy has."""


def test_numbers_and_text_of_derived_classes_do_not_poison(open_store: OpenStore) -> None:
    """They are taken for what they are: encoding them failed, and poisoned the shard."""
    store = open_store()
    topic = store.create_topic("t", compression=Word("zstd"), segment_records=Offset(7))
    topic.append_many([b"1", b"2", b"3"])
    group = topic.group("g", mode=Word("stream"), start=Offset(1))
    assert group.seek(Offset(2)) == 2
    queue = store.queue("q", delivery=Word("at_most_once"), max_deliveries=Offset(3))
    queue.put(b"x")
    topic.append(b"4")
    store.sync()
    store.close()
    again = open_store()
    assert again.topic("t").options.compression == "zstd"
    assert again.topic("t").group("g").poll("me")[0].offset == 2
    assert again.queue("q").options.delivery == "at_most_once"


def test_put_many_and_drop_queue_take_what_they_can_only(open_store: OpenStore) -> None:
    """Other types are refused by an error of ours."""
    store = open_store()
    with pytest.raises(stratalog.StratalogError):
        store.queue("q").put_many(None)  # type: ignore[arg-type]
    names: tuple[Any, ...] = (1j, set(), None)
    for name in names:
        with pytest.raises(stratalog.StratalogError):
            store.drop_queue(name)


def test_a_refused_open_leaves_nothing(tmp_path: Path) -> None:
    """A directory of something else stays as it is."""
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").touch()
    with pytest.raises(stratalog.NotAStoreError):
        stratalog.open(tmp_path / "photos")
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["cat.png"]
