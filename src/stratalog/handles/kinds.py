"""Kinds of topics: which handle opens a name, and which writes a topic accepts.

| kind | opened with | written by |
|---|---|---|
| topic | `store.topic(name)` | `append` |
| queue | `store.queue(name)` | `put` |
| table | `store.table(name)` | `put`, `delete`, `add` |
| series | `store.series(name)` | `write` |

Records of every kind can be read with `store.topic(name)`: for a table, that is its history.
"""

from __future__ import annotations

from stratalog.errors import WrongKindError
from stratalog.log.topic import TopicLog

TABLE = "table"
SERIES = "series"


def check_is(log: TopicLog, kind: str) -> None:
    """Raise unless a topic is of a kind."""
    if log.kind != kind:
        opened = log.kind if log.kind in ("topic", "queue", TABLE, SERIES) else "topic"
        raise WrongKindError(
            f"{log.name!r} is not a {kind}, but a {log.kind}. Open it with "
            f"store.{opened}({log.name!r}), or give the {kind} another name."
        )


def check_takes_records(log: TopicLog) -> None:
    """Raise if the records of a topic are written only through its own kind of handle."""
    if log.kind in (TABLE, SERIES):
        raise WrongKindError(
            f"{log.name!r} is a {log.kind}, and its records can be read as a topic, not written or "
            f"deleted. Write to it with store.{log.kind}({log.name!r})."
        )
