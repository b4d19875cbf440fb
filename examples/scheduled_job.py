"""A job that comes back: a schedule puts it, a worker runs it, and a restart repeats nothing."""

import tempfile
import threading
from datetime import datetime

import stratalog

RUNS = 3


def work(store: stratalog.Store) -> list[datetime]:
    """Run what is scheduled until it has run a few times; returns the due times."""
    done, stop = list[datetime](), threading.Event()

    def clean_up(message: stratalog.Message) -> None:
        done.append(datetime.fromisoformat(message.headers["schedule.due"].decode()))
        if len(done) >= RUNS:
            stop.set()

    # The same call whenever the program starts: a schedule that is there stays as it is.
    store.schedule("cleanup", every=0.05, queue="jobs", value=b"clean up")
    store.queue("jobs").work(clean_up, stop=stop)
    return done


with tempfile.TemporaryDirectory() as directory:
    due: list[datetime] = []
    for _ in range(2):
        with stratalog.open(directory) as store:
            due += work(store)
    print(*due, sep="\n")
    assert len(due) == len(set(due)) >= 2 * RUNS, "a due time came twice"
