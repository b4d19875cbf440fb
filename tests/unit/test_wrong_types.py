"""What callers get wrong, or bring in a class of their own: told so, or taken as it is meant."""

from __future__ import annotations

import copy
import enum
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stratalog
from stratalog import NotAStoreError, OptionError, Record, WrongTypeError
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
        (lambda topic: topic.append_many(None), "takes a list of records, not NoneType: None"),
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
