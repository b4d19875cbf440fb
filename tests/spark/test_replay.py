"""Replays: a function over a topic, each record once, however often it is run."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.conftest import OpenStore

from stratalog.errors import OptionError, UnknownTopicError, WrongTypeError
from stratalog.model import Record
from stratalog.spark import jobs
from stratalog.spark.jobs.stage_segments import publish

# The package has the function of that name.
replay_module = importlib.import_module("stratalog.spark.jobs.replay")


def double(record: Record) -> Any:
    """Odd ones go, those by ten come twice, the others get a new value."""
    number = int(record.value or b"")
    if number % 2:
        return None
    if number % 10 == 0:
        return [record, Record(value=b"again", timestamp=record.timestamp)]
    return b"%d" % (2 * number)


def _expected(numbers: range) -> list[bytes]:
    found: list[bytes] = []
    for number in numbers:
        if number % 10 == 0:
            found += [b"%d" % number, b"again"]
        elif number % 2 == 0:
            found.append(b"%d" % (2 * number))
    return found


def test_a_topic_goes_through_a_function_once(spark: Any, open_store: OpenStore) -> None:
    """Run again it does nothing; with more records it does those; all else of a record stays."""
    store = open_store(shards=1)
    numbers = store.topic("numbers")
    records = [Record(value=b"%d" % n, key=b"k", headers={"h": b"%d" % n}) for n in range(300)]
    numbers.append_many(records[:200])
    store.checkpoint()
    numbers.append_many(records[200:])
    numbers.delete(offsets=[2])
    report = jobs.replay(store.path, "numbers", "evens", double, spark=spark)
    expected = [value for value in _expected(range(300)) if value != b"4"]
    evens = store.topic("evens")
    assert evens.read_values() == expected
    assert (report.read, report.written) == (299, len(expected))
    first = next(iter(evens.read(2, 3)))
    assert isinstance(first, Record)
    assert (first.value, first.key, first.headers) == (b"8", b"k", {"h": b"4"})
    again = jobs.replay(store.path, "numbers", "evens", double, spark=spark)
    assert (again.read, again.written) == (0, 0)
    numbers.append_many([b"%d" % n for n in range(300, 350)])
    more = jobs.replay(store.path, "numbers", "evens", double, spark=spark)
    assert (more.start, more.end, more.read) == (300, 350, 50)
    assert evens.read_values() == expected + _expected(range(300, 350))
    part = jobs.replay(store.path, "numbers", "part", double, start=10, end=20, spark=spark)
    assert part.read == 10
    assert store.topic("part").read_values() == _expected(range(10, 20))


def test_one_that_is_cut_short_goes_on(
    spark: Any, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between any two of its chunks, before and after the moment that a chunk is adopted."""
    monkeypatch.setattr(replay_module, "_CHUNK_BYTES", 1)
    monkeypatch.setattr(replay_module, "_UNIT_BYTES_MIN", 1)
    monkeypatch.setattr(replay_module, "_UNIT_BYTES_MAX", 300)
    store = open_store(shards=1)
    for start in range(0, 100, 10):
        store.topic("numbers").append_many([b"%d" % n for n in range(start, start + 10)])
    real = publish
    left = [2]

    def cut(*arguments: Any) -> bool:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        done = real(*arguments)
        if left[0] == 1:
            left[0] = 2
            monkeypatch.setattr(replay_module, "publish", cut_before)
            raise KeyboardInterrupt
        return done

    def cut_before(*_: Any) -> bool:
        monkeypatch.setattr(replay_module, "publish", real)
        raise KeyboardInterrupt

    monkeypatch.setattr(replay_module, "publish", cut)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            jobs.replay(store.path, "numbers", "evens", double, spark=spark)
    jobs.replay(store.path, "numbers", "evens", double, spark=spark)
    assert store.topic("evens").read_values() == _expected(range(100))


def test_a_function_may_take_columns(spark: Any, open_store: OpenStore) -> None:
    """And may be a lambda, if it is given a name."""
    store = open_store(shards=1)
    store.topic("words").append_many([b"one", b"two", b"three"])
    jobs.replay(store.path, "words", "loud", _upper, as_arrow=True, spark=spark)
    assert store.topic("loud").read_values() == [b"ONE", b"TWO", b"THREE"]
    jobs.replay(
        store.path, "words", "short", lambda r: r if len(r.value) == 3 else None, name="short",
        spark=spark,
    )  # fmt: skip
    assert store.topic("short").read_values() == [b"one", b"two"]


def _upper(batch: pa.RecordBatch) -> pa.RecordBatch:
    text = pc.utf8_upper(batch.column("value").cast(pa.string())).cast(pa.binary())
    return batch.set_column(batch.schema.get_field_index("value"), "value", text)


def test_a_function_is_found_by_its_name(
    spark: Any, tmp_path: Path, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the working directory; executors need not have it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "loud_steps.py").write_text("def shout(record):\n    return record.value.upper()\n")
    store = open_store(shards=1)
    store.topic("words").append_many([b"one", b"two"])
    jobs.replay(store.path, "words", "loud", "loud_steps:shout", spark=spark)
    assert store.topic("loud").read_values() == [b"ONE", b"TWO"]
    for text in ("loud_steps", "no_such_module:x", "loud_steps:whisper"):
        with pytest.raises(OptionError, match="function"):
            jobs.replay(store.path, "words", "x", text, spark=spark)


def test_what_cannot_be_is_refused(spark: Any, open_store: OpenStore) -> None:
    """Into itself, from nowhere, without a name, with a function that returns something else."""
    store = open_store(shards=1)
    store.topic("words").append(b"one")
    with pytest.raises(OptionError, match="into itself"):
        jobs.replay(store.path, "words", "words", double, spark=spark)
    with pytest.raises(UnknownTopicError):
        jobs.replay(store.path, "nothing", "x", double, spark=spark)
    with pytest.raises(OptionError, match="needs name="):
        jobs.replay(store.path, "words", "x", lambda r: r, spark=spark)
    with pytest.raises(WrongTypeError, match="returned int for offset 0"):
        jobs.replay(store.path, "words", "x", lambda r: 5, name="five", spark=spark)
    assert "x" not in store.topics()
