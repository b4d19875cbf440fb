"""The scenes of `stratalog demo`; every scene checks what it claims.

Each scene opens the store itself, as a program of its own would.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import msgspec

import stratalog
from stratalog import Record
from stratalog.cli.output import count_text

TOPIC = "payments"

_THREADS = 4
_APPENDS_PER_THREAD = 100
_JOBS = 200

# Long enough for hundreds of appends, short enough for a demonstration.
_KILL_AFTER_SECONDS = 0.5
_START_SECONDS_MAX = 30.0


class Scene(msgspec.Struct, frozen=True):
    """The outcome of a scene and what it proved: `ok` is false when it did not."""

    name: str
    ok: bool
    did: str
    proved: str
    counts: dict[str, int]


class Play:
    """The scenes in order, and what each has to know from those before it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._written: dict[int, bytes] = {}
        """Records that the threads of this process appended, by offset."""
        self._acknowledged: dict[int, bytes] = {}
        """Records that were acknowledged to the killed process as durable, by offset."""
        self._before_child_ns = 0

    def scenes(self) -> list[tuple[str, Callable[[], Scene]]]:
        """A line to show while a scene runs, and the scene."""
        return [
            ("creating a store", self.create),
            (f"appending from {_THREADS} threads", self.threads),
            ("killing a process while it appends", self.kill),
            ("reopening the store", self.recover),
            ("reading everything back", self.read),
            ("looking up a time", self.find_time),
            ("working through a queue", self.queue),
            ("a table, a series and a route", self.views),
        ]

    def create(self) -> Scene:
        """A new directory becomes a store."""
        with stratalog.open(self._path, durability="fsync") as store:
            store.topic(TOPIC)
            shards = store.stats().shards
        with stratalog.open(self._path, read_only=True) as store:
            ok = store.topics() == [TOPIC]
        return Scene(
            "create", ok,
            f"a store with {count_text(shards, 'shard')} and the topic {TOPIC!r}",
            "a second, read-only handle finds the topic",
            {"shards": shards},
        )  # fmt: skip

    def threads(self) -> Scene:
        """Threads append at the same time; their syncs are shared, their offsets are not."""

        def work(worker: int) -> list[tuple[int, bytes]]:
            values = [f"thread-{worker}-{n}".encode() for n in range(_APPENDS_PER_THREAD)]
            return [(topic.append(value), value) for value in values]

        with (
            stratalog.open(self._path, durability="fsync") as store,
            ThreadPoolExecutor(_THREADS) as pool,
        ):
            topic = store.topic(TOPIC)
            before = store.stats().syncs
            begin = time.perf_counter()
            parts = list(pool.map(work, range(_THREADS)))
            took = time.perf_counter() - begin
            syncs = store.stats().syncs - before
        self._written = dict(pair for pairs in parts for pair in pairs)
        total = _THREADS * _APPENDS_PER_THREAD
        return Scene(
            "threads", sorted(self._written) == list(range(total)),
            f"{total} durable appends from {_THREADS} threads in {took * 1000:.0f} ms, "
            f"sharing {count_text(syncs, 'sync')}",
            f"every append got an offset of its own, 0 to {total - 1}",
            {"appends": total, "syncs": syncs},
        )  # fmt: skip

    def kill(self) -> Scene:
        """Another process appends and is killed: no handler, no flush, no goodbye."""
        self._before_child_ns = time.time_ns()
        with _victim(self._path) as child:
            assert child.stdout is not None
            lines = iter(child.stdout.readline, b"")
            hurry = threading.Timer(_START_SECONDS_MAX, child.kill)
            hurry.start()
            first = next(lines, b"")
            hurry.cancel()
            killer = threading.Timer(_KILL_AFTER_SECONDS, child.kill)
            killer.start()
            for line in (first, *lines):
                offset, _, value = line.rstrip(b"\n").partition(b" ")
                if value:
                    self._acknowledged[int(offset)] = value
            killer.cancel()
        return Scene(
            "kill -9", child.returncode == -9 and bool(self._acknowledged),
            f"process {child.pid} was told that {len(self._acknowledged):,} appends are durable, "
            "then came SIGKILL",
            "it died in the middle of appending" if child.returncode == -9
            else f"it ended by itself with {child.returncode}",
            {"acknowledged": len(self._acknowledged)},
        )  # fmt: skip

    def recover(self) -> Scene:
        """The store opens again, with every acknowledged record in its place."""
        expected = self._written | self._acknowledged
        begin = time.perf_counter()
        with stratalog.open(self._path) as store:
            took = time.perf_counter() - begin
            stats = store.stats()
            found = {item.offset: item.value for item in _records(store.topic(TOPIC))}
        lost = [offset for offset, value in expected.items() if found.get(offset) != value]
        extra = len(found.keys() - expected.keys())
        return Scene(
            "recover", not lost,
            f"reopened in {took * 1000:.0f} ms, {count_text(stats.replayed_frames, 'frame')} "
            f"replayed; {count_text(stats.torn_bytes, 'unfinished byte')} cut off, "
            f"{count_text(extra, 'unacknowledged record')} kept",
            f"LOST: {count_text(len(lost), 'acknowledged record')}, the first at offset {lost[0]}"
            if lost
            else f"all {len(expected):,} acknowledged records are there, byte for byte",
            {
                "acknowledged": len(expected), "lost": len(lost), "unacknowledged": extra,
                "replayed_frames": stats.replayed_frames, "torn_bytes": stats.torn_bytes,
            },
        )  # fmt: skip

    def read(self) -> Scene:
        """Read the records back, as objects and as an Arrow table."""
        with stratalog.open(self._path, read_only=True) as store:
            topic = store.topic(TOPIC)
            records = list(_records(topic))
            table = topic.read_arrow().read_all()
        ok = (
            table["offset"].to_pylist() == [record.offset for record in records]
            and table["value"].to_pylist() == [record.value for record in records]
        )  # fmt: skip
        return Scene(
            "read", ok,
            f"{count_text(len(records), 'record')} one by one, and an Arrow table of "
            f"{table.num_rows:,} rows and {table.num_columns} columns",
            "both ways give the same offsets and values",
            {"records": len(records), "rows": table.num_rows},
        )  # fmt: skip

    def find_time(self) -> Scene:
        """A moment is as good a starting point as an offset."""
        with stratalog.open(self._path, read_only=True) as store:
            topic = store.topic(TOPIC)
            offset = topic.offset_at(self._before_child_ns)
            value = next(iter(topic.read_values(offset, 1)), None) or b"nothing"
        return Scene(
            "time", offset == len(self._written) and value.startswith(b"child-"),
            f"offset_at(just before the other process began) is {offset}",
            f"that is its first record: {value.decode()}",
            {"offset": offset},
        )  # fmt: skip

    def queue(self) -> Scene:
        """Threads share the work; what always fails is put aside, and everything else is done."""
        done: list[bytes] = []

        def work() -> None:
            while (message := jobs.get_nowait()) is not None:
                with contextlib.suppress(ZeroDivisionError), message:
                    100 // (int(message.value or b"0") % _JOBS)
                    done.append(message.value or b"")

        with stratalog.open(self._path) as store, ThreadPoolExecutor(_THREADS) as pool:
            jobs = store.queue("jobs", max_deliveries=3, backoff=0.0)
            jobs.put_many([b"%d" % n for n in range(1, _JOBS + 1)])
            for future in [pool.submit(work) for _ in range(_THREADS)]:
                future.result()
            [letter] = jobs.dead.read()
            left = len(jobs)
        deliveries = letter.headers["dlq.delivery_count"].decode()
        return Scene(
            "queue", left == 0 and sorted(map(int, done)) == list(range(1, _JOBS)),
            f"{_JOBS} jobs for {_THREADS} threads; one of them divides by zero",
            f"{len(done)} done, each once; the bad one is a dead letter after {deliveries} tries",
            {"done": len(done), "dead": 1},
        )  # fmt: skip

    def views(self) -> Scene:
        """A table's change and a series' point commit with the record that caused them."""
        with stratalog.open(self._path) as store:
            route = store.route("transfers", "large transfers", tag_glob="large")
            balances, amounts = store.table("balances"), store.series("amounts")
            balances.put("ada", b"100")
            for amount, tag in ((30, "small"), (250, "large")):
                with store.batch() as batch:
                    batch.topic("transfers").append(b"ada pays %d" % amount, tag=tag)
                    left = batch.table("balances").add("ada", -amount)
                    batch.series("amounts").write(float(amount), tags={"customer": "ada"})
            is_forwarded = route.wait(timeout=_START_SECONDS_MAX)
            route.drop()
            versions = [entry.value for entry in balances.history("ada")]
            forwarded = store.topic("large transfers").read_values()
            [latest] = amounts.latest()
        ok = (
            versions == [b"100", b"70", b"-180"] and left.value == -180 and is_forwarded
            and forwarded == [b"ada pays 250"] and latest.fields == {"value": 250.0}
        )  # fmt: skip
        return Scene(
            "views", ok,
            "two transfers, each one batch of a record, a table's counter and a series' point; a "
            "route for large ones",
            f"the balance is {left.value}, its versions are kept, the newest amount is "
            f"{latest.fields.get('value', 0):.0f}, and "
            f"{count_text(len(forwarded), 'large transfer')} came by the route",
            {"versions": len(versions), "forwarded": len(forwarded)},
        )  # fmt: skip


def _records(topic: stratalog.Topic) -> Iterator[Record]:
    return (item for item in topic.read() if isinstance(item, Record))


@contextmanager
def _victim(path: str) -> Iterator[subprocess.Popen[bytes]]:
    """The other process; it is gone at the end, whatever happens in between."""
    command = [sys.executable, "-m", "stratalog.cli.demo.victim", path, TOPIC]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as child:
        try:
            yield child
        finally:
            child.kill()
