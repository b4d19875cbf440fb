"""Profile a path of the engine: `python -m benchmarks.path_profile append-fsync`, `make profile`.

Prints the functions that take the most time of their own, and the time of one operation without
the profiler, which slows Python calls down several times and C calls not at all.
"""

from __future__ import annotations

import cProfile
import pstats
import sys
import tempfile
import time
from collections.abc import Callable

import stratalog
from stratalog import Store

VALUE = b"x" * 100
ROWS = 25


def _append(durability: str) -> Callable[[Store], Callable[[], object]]:
    def prepare(store: Store) -> Callable[[], object]:
        append = store.create_topic("t", durability=durability).append
        return lambda: append(VALUE)

    return prepare


def _append_key(store: Store) -> Callable[[], object]:
    append = store.create_topic("t", durability="disk").append
    return lambda: append(VALUE, key=b"key")


def _append_many(store: Store) -> Callable[[], object]:
    append_many = store.create_topic("t", durability="disk").append_many
    values = [VALUE] * 1000
    return lambda: append_many(values)


def _read(store: Store) -> Callable[[], object]:
    topic = store.create_topic("t", durability="disk")
    topic.append_many([VALUE] * 10_000)
    store.checkpoint()
    return lambda: sum(1 for _ in topic.read())


def _queue(store: Store) -> Callable[[], object]:
    queue = store.queue("q", durability="disk")

    def work() -> None:
        queue.put(VALUE)
        queue.ack(queue.get())

    return work


WORKLOADS: dict[str, tuple[int, Callable[[Store], Callable[[], object]]]] = {
    "append-disk": (200_000, _append("disk")),
    "append-fsync": (5_000, _append("fsync")),
    "append-key": (100_000, _append_key),
    "append-many": (500, _append_many),
    "queue": (20_000, _queue),
    "read": (50, _read),
}
"""By name: how often, and what prepares the operation."""


def main(arguments: list[str]) -> int:
    """Profile the workload that is named."""
    if len(arguments) != 1 or arguments[0] not in WORKLOADS:
        print(f"Give one workload: {', '.join(WORKLOADS)}")
        return 2
    count, prepare = WORKLOADS[arguments[0]]
    profiler = cProfile.Profile()
    with tempfile.TemporaryDirectory() as path, stratalog.open(path) as store:
        operation = prepare(store)
        begin = time.perf_counter()
        for _ in range(count):
            operation()
        seconds = time.perf_counter() - begin
        profiler.enable()
        for _ in range(count):
            operation()
        profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(ROWS)
    print(f"{arguments[0]}: {seconds / count * 1e6:.2f} us each, without the profiler")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
