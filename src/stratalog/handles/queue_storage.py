"""How a queue's messages are kept: options of the topic that holds them.

A queue that says nothing keeps no message that was consumed. One with a retention keeps consumed
messages as long as that says, so that `seek` can go back to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stratalog.handles.alter import redefinition
from stratalog.handles.queue import QUEUE_TOPIC
from stratalog.log.topic import TopicLog
from stratalog.options import QueueOptions, TopicOptions, check_known

if TYPE_CHECKING:
    from stratalog.handles.store import Store

_LIMITS = (
    "retention_seconds", "retention_bytes", "retention_records", "retention_segments_max",
)  # fmt: skip
STORAGE = (
    *_LIMITS, "retention_segments_min", "compression", "segment_records", "segment_bytes",
    "segment_seconds",
)  # fmt: skip
"""Options of a topic that a queue takes."""


def split_options(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Separate the options of a queue from those of its storage; both are checked."""
    check_known("queue option", given, [*QueueOptions.__dataclass_fields__, *STORAGE])
    storage = {name: value for name, value in given.items() if name in STORAGE}
    options = {name: value for name, value in given.items() if name not in STORAGE}
    QueueOptions.build(options)
    TopicOptions.build(storage)
    return options, storage


def stored_as(before: Mapping[str, Any], storage: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a queue's topic that has some already, with these in their place."""
    options = {**QUEUE_TOPIC, **before, **storage}
    has_limit = any(options.get(name) for name in _LIMITS)
    if has_limit and not options["retention_records"]:
        options["retention_records"] = None  # or all that was consumed would go
    elif not has_limit:
        options["retention_records"] = 0
    return options


def keep_as(store: Store, log: TopicLog, storage: Mapping[str, Any]) -> None:
    """Change how messages of an existing queue are kept, durably; the store's lock is held."""
    options = TopicOptions.restore(stored_as(log.options.to_dict(), storage))
    if options != log.options:
        store.write_controls([redefinition(log, options)])
