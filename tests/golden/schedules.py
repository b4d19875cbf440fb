"""A store with schedules: how the golden one was made, and what is read of it."""

from __future__ import annotations

from typing import Any

import msgspec

from stratalog.handles.store import Store
from stratalog.model import Record
from stratalog.testing import ManualClock
from tests.golden.routes import make_files


def work(store: Store, clock: ManualClock, turn: int) -> None:
    """Something of everything."""
    # The machine's rules of time zones are no part of the format.
    nightly = store.schedule(
        "nightly", cron="0 3 * * *", queue="jobs", value=b"clean up", timezone="Etc/GMT-3",
        headers={"größe": b"\0"}, priority=9, ttl=86400.0,
    )  # fmt: skip
    store.schedule("poll", every=60.5, queue="polls", value=None)
    store.schedule("orphan", every=3600.0 + turn, queue="doomed", value=b"x" * turn)
    if turn:
        nightly.resume()
        store.drop_queue("doomed")
        store.schedule("gone", cron="@yearly", queue="jobs").drop()
    clock.advance(90000.0)
    store.run_schedules()
    if not turn:
        nightly.pause()


def expected(store: Store) -> dict[str, Any]:
    """Collect what a reader sees."""
    return {
        "now": store.clock.time_ns(),
        "schedules": [msgspec.to_builtins(one.stats()) for one in store.schedules()],
        "queues": {
            name: [[r.offset, None if r.value is None else r.value.decode(), r.priority,
                    r.headers["schedule.due"].decode(), r.timestamp]
                   for r in store.topic(name).read() if isinstance(r, Record)]
            for name in store.topics()
        },
    }  # fmt: skip


def files() -> dict[str, bytes]:
    """The store, and what it must be read as."""
    return make_files(bytes(range(48, 64)), work, expected)
