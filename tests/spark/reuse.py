"""DataFrames and views that are used again and again, beside a writer: all results must be right.

Run as a program, it does so in a session that is not one of ours:
`python -m tests.spark.reuse STORE SEED FRAMES`.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import stratalog.spark
from stratalog.handles.store import Store
from stratalog.model import Record
from stratalog.options import StoreOptions

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
KEYS = 30

Row = tuple[str, int, bytes, bytes]


@contextmanager
def pushdown(spark: Any, value: str) -> Iterator[None]:
    """A session with the setting, as a user may have it."""
    before = spark.conf.get(PUSHDOWN)
    spark.conf.set(PUSHDOWN, value)
    try:
        yield
    finally:
        spark.conf.set(PUSHDOWN, before)


class Writer:
    """Appends, deletes, compacts and evicts in a thread, as many steps as it is let."""

    def __init__(self, store: Store, seed: int) -> None:
        self._store = store
        self._dice = random.Random(seed)
        self._turns = threading.Semaphore(0)
        self._is_over = False
        self._thread = threading.Thread(target=self._run)
        self._failure: BaseException | None = None
        self.lock = threading.Lock()
        """Held while the store stands still."""
        self._events = store.create_topic("events", segment_records=50, retention_records=1000)
        self._state = store.create_topic("state", compact=True, segment_records=50)
        for _ in range(8):
            self._append()
        store.checkpoint()

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._turns.release()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def go_on(self) -> None:
        """Let it do a step, beside whatever comes next here."""
        self._turns.release()

    def rows(self) -> dict[str, list[Row]]:
        """All that can be read of each topic; call it with the lock."""
        return {
            topic.name: [
                (topic.name, one.offset, one.key or b"", one.value or b"")
                for one in topic.read()
                if isinstance(one, Record)
            ]
            for topic in (self._events, self._state)
        }

    def keys(self) -> set[bytes]:
        """Every key that the compacted topic ever had."""
        return {b"key %d" % n for n in range(KEYS)}

    def _append(self) -> None:
        dice = self._dice
        for topic in (self._events, self._state):
            numbers = [*range(KEYS), *(dice.randrange(KEYS) for _ in range(KEYS))]
            topic.append_many([Record(key=b"key %d" % n, value=dice.randbytes(8)) for n in numbers])

    def _delete(self) -> None:
        events = self._events
        low = self._dice.randint(events.earliest, events.next_offset)
        events.delete(offsets=range(low, min(low + 5, events.next_offset)))

    def _run(self) -> None:
        store = self._store
        steps: list[Callable[[], object]] = [
            self._append, self._append, self._append, self._append, store.checkpoint,
            store.snapshot, self._delete, store.compact,
        ]  # fmt: skip
        try:
            while self._turns.acquire() and not self._is_over:
                with self.lock:
                    self._dice.choice(steps)()
        except BaseException as error:
            self._failure = error


class Used(NamedTuple):
    """A DataFrame, or the name of a view, and the rows that were there when it was made."""

    frame: Any
    view: str | None
    rows: list[Row]


def check(spark: Any, path: str, seed: int, count: int) -> dict[str, int]:
    """Make and use so many DataFrames; returns how many results were whole, and how many errors."""
    dice = random.Random(seed)
    outcomes = {"whole": 0, "lost": 0}
    used: list[Used] = []
    options = StoreOptions.build({"durability": "disk", "log_file_bytes": 1 << 16}, {})
    # Without upkeep of its own, which would change it between a look at it and a DataFrame.
    with Store(path, options, background=False) as store, Writer(store, seed) as writer:
        for number in range(count):
            used.append(_make(spark, path, writer, dice, f"used_{seed}_{number}"))
            chosen = [used[-1], *dice.sample(used, min(2, len(used)))]
            for one in chosen:
                with pushdown(spark, dice.choice(["true", "false"])):
                    writer.go_on()
                    outcomes[_use(spark, one, dice)] += 1
    return outcomes


def _make(spark: Any, path: str, writer: Writer, dice: random.Random, name: str) -> Used:
    topic = dice.choice(["events", "state", "events,state"])
    kind = dice.choice(["read", "load", "schema", "view", "sql view"])
    with writer.lock:
        rows = [row for some in writer.rows().values() for row in some]
        rows = [row for row in rows if row[0] in topic.split(",")]
        if "state" in topic:
            assert {row[2] for row in rows if row[0] == "state"} == writer.keys()
        if kind == "sql view":
            spark.sql(
                f"CREATE TEMPORARY VIEW {name} USING stratalog "
                f"OPTIONS (path '{path}', topic '{topic}')"
            )
            return Used(spark.table(name), name, rows)
        if kind == "read":
            columns = ["topic", "offset", "key", "value"]
            frame = stratalog.spark.read(spark, path, topic, columns=columns)
        else:
            reader = spark.read.format("stratalog").option("topic", topic)
            if kind == "schema":
                reader = reader.schema("topic string, offset bigint, key binary, value binary")
            frame = reader.load(path)
        if kind == "schema":
            assert frame.count() == len(rows)  # Spark makes the source with the first action
        if kind != "view":
            return Used(frame, None, rows)
        frame.createOrReplaceTempView(name)
        return Used(frame, name, rows)


def _use(spark: Any, one: Used, dice: random.Random) -> str:
    conditions = [_condition(one, dice), _condition(one, dice)]
    frame = spark.table(one.view) if one.view else one.frame
    found: Any
    try:
        if dice.random() < 0.3:
            found = frame.where(conditions[0][0]).union(frame.where(conditions[1][0])).collect()
            wanted = [row for _, holds in conditions for row in one.rows if holds(row)]
        else:
            text, holds = dice.choice([*conditions, ("true", lambda row: True)])
            found = frame.where(text).collect()
            wanted = [row for row in one.rows if holds(row)]
    except Exception as error:
        if "DataLossError" not in str(error):
            raise
        return "lost"
    rows = [(row.topic, row.offset, bytes(row.key), bytes(row.value)) for row in found]
    assert sorted(rows) == sorted(wanted), (len(rows), len(wanted))
    return "whole"


def _condition(one: Used, dice: random.Random) -> tuple[str, Callable[[Row], bool]]:
    offset = dice.choice(one.rows)[1]
    key = b"key %d" % dice.randrange(KEYS)
    choices: list[tuple[str, Callable[[Row], bool]]] = [
        (f"offset < {offset}", lambda row: row[1] < offset),
        (f"offset >= {offset}", lambda row: row[1] >= offset),
        (f"offset = {offset}", lambda row: row[1] == offset),
        (f"key = X'{key.hex()}'", lambda row: row[2] == key),
        ("topic = 'state'", lambda row: row[0] == "state"),
        (f"topic = 'events' AND offset > {offset}", lambda row: row[0] < "f" and row[1] > offset),
    ]
    return dice.choice(choices)


def main(path: str, seed: str, count: str) -> None:
    """In a session that was made without us."""
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    try:
        print(check(spark, str(Path(path)), int(seed), int(count)))
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
