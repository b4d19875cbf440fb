"""Many small pieces of work in few large tasks: how jobs use executors.

A piece is a value that can be pickled. A function of this package is applied to it on any executor,
and opens there what it needs. Pieces are packed by size into a few tasks per core, because a task
costs some milliseconds however little it does.
"""

from __future__ import annotations

import heapq
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from stratalog.errors import StratalogError, UsageError
from stratalog.spark.ship import freeze_modules

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")

# So that a slow core does not delay the rest for long.
_TASKS_PER_CORE = 3
_POLL_SECONDS = 0.1

Done = Callable[[int], None]
"""Receives how much of the work is done, in the unit of its sizes."""


class WorkError(StratalogError):
    """An unexpected failure of a piece of work on an executor."""


class _Failure(NamedTuple):
    """The error of a piece of work."""

    error: Exception
    text: str


def cores(spark: SparkSession) -> int:
    """Return how many tasks run at once."""
    return max(1, int(spark.sparkContext.defaultParallelism))


def piece_bytes(spark: SparkSession, total: int) -> int:
    """Choose the size of pieces for that many bytes."""
    return min(max(total // (cores(spark) * 8), 4 << 20), 64 << 20)


def run(
    spark: SparkSession,
    function: Callable[[T], R],
    pieces: Sequence[T],
    sizes: Sequence[int],
    done: Done | None = None,
    task_bytes_min: int = 1,
) -> list[R]:
    """Apply a function to every piece; results are in the order of the pieces.

    The error of a piece is raised once all of the work has ended. `task_bytes_min` is the least
    work of a task, for work that is faster than the overhead of tasks.
    """
    if not pieces:
        return []
    per_core = sum(sizes) // (cores(spark) * task_bytes_min)
    bins = pack(sizes, cores(spark) * min(max(per_core, 1), _TASKS_PER_CORE))
    tasks = [[(number, pieces[number]) for number in one] for one in bins]
    data = spark.sparkContext.parallelize(tasks, len(tasks)).map(partial(_work, function))
    total = sum(sizes)
    found = watch(spark, data.collect, None if done is None else lambda s: done(round(s * total)))
    results: list[Any] = [None] * len(pieces)
    for number, result in (item for some in found for item in some):
        if isinstance(result, _Failure):
            raise _known(result) from result.error
        results[number] = result
    return cast("list[R]", results)


def pack(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Distribute items to at most `count` groups of about equal size, as lists of their numbers."""
    heap = [(0, number) for number in range(min(count, len(sizes)))]
    groups: list[list[int]] = [[] for _ in heap]
    for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        size, group = heapq.heappop(heap)
        groups[group].append(number)
        heapq.heappush(heap, (size + sizes[number] + 1, group))
    return groups


def _work(function: Callable[[Any], Any], pieces: list[tuple[int, Any]]) -> list[tuple[int, Any]]:
    """Run one task; on an executor."""
    freeze_modules()
    results: list[tuple[int, Any]] = []
    for number, piece in pieces:
        try:
            results.append((number, function(piece)))
        except (StratalogError, OSError) as error:
            results.append((number, _Failure(error, "")))
        except Exception as error:
            results.append((number, _Failure(WorkError(str(error)), traceback.format_exc())))
    return results


def _known(failure: _Failure) -> Exception:
    if not failure.text:
        return failure.error
    return WorkError(f"a piece of work failed on an executor:\n{failure.text}")


def watch(
    spark: SparkSession, action: Callable[[], R], done: Callable[[float], None] | None = None
) -> R:
    """Run an action that starts jobs in a separate thread, so that Ctrl-C and progress work.

    `done` receives the share of tasks that have ended.
    """
    context = spark.sparkContext
    group = f"stratalog-{time.monotonic_ns()}"
    outcome: list[R | Exception] = []

    def work() -> None:
        try:
            context.setJobGroup(group, "stratalog", interruptOnCancel=True)
            outcome.append(action())
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=work, name=group, daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_POLL_SECONDS)
            if done is not None:
                done(_share(context.statusTracker(), group))
    except BaseException:
        context.cancelJobGroup(group)
        thread.join()
        raise
    (result,) = outcome
    if isinstance(result, Exception):
        raise _explained(result) from result
    return result


def _share(tracker: Any, group: str) -> float:
    """Return the share of finished tasks in a group of jobs."""
    tasks = completed = 0
    for job in tracker.getJobIdsForGroup(group):
        for stage in getattr(tracker.getJobInfo(job), "stageIds", ()):
            if (info := tracker.getStageInfo(stage)) is not None:
                tasks += info.numTasks
                completed += info.numCompletedTasks
    return completed / tasks if tasks else 0.0


def _explained(error: Exception) -> Exception:
    """Explain a job that failed as a whole, where the reason is known."""
    text = str(error)
    if "No module named 'stratalog" in text:
        return UsageError(
            "the executors have no stratalog: install it where Spark's Python runs, or send it "
            "along with spark.submit.pyFiles"
        )
    return error
