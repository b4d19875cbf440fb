"""A job that comes back: each run puts the next one, with a delay and an id of its own."""

import tempfile
import time

import stratalog

EVERY = 0.05


def plan(jobs: stratalog.Queue, run: int) -> None:
    """Put one run of the job; the id keeps it from being planned twice."""
    jobs.put(b"%d" % run, delay=EVERY, dedup_id=f"cleanup-{run}")


with tempfile.TemporaryDirectory() as directory, stratalog.open(directory) as store:
    jobs = store.queue("cleanup")
    plan(jobs, 0)
    plan(jobs, 0)  # a second scheduler, or the same after a crash: it is there already
    begin = time.monotonic()
    for _ in range(4):
        with jobs.get(timeout=10.0) as message:
            run = int(message.value or b"0")
            plan(jobs, run + 1)  # before this one is done: a crash repeats it, and plans no more
            print(f"run {run} after {time.monotonic() - begin:.2f} s")
    assert run == 3
    assert len(jobs) == 1
