"""Names of handles that users are meant to find.

A handle also has methods for other handles, and for asyncio. `dir()`, and with it the completion of
shells and notebooks, lists the documented ones alone.
"""

from __future__ import annotations

from collections.abc import Iterable

DOCUMENTED = {
    "Store": {
        "adopt", "backup", "batch", "checkpoint", "clock", "close", "compact",
        "configuration", "create_topic", "damage", "drop_queue", "drop_series",
        "drop_table", "drop_topic", "is_adopted", "is_closed", "is_read_only", "metrics",
        "options", "path", "queue", "queues", "rebuild", "route", "routes", "schedule",
        "schedules", "series", "series_names", "snapshot", "stats", "sync", "table",
        "tables", "topic", "topics", "write_lines",
    },
    "Topic": {
        "alter", "append", "append_arrow", "append_many", "append_nowait", "delete", "diff",
        "durability", "earliest", "epoch", "group", "groups", "is_dropped", "lake", "name",
        "next_offset", "offset_at", "offset_by_size", "options", "read", "read_arrow",
        "read_values", "records", "segments", "stats", "watch",
    },
    "Queue": {
        "ack", "dead", "durability", "get", "get_many", "get_nowait", "nack", "name",
        "options", "peek", "purge", "put", "put_many", "seek", "stats", "topic", "touch",
        "type", "work",
    },
    "Group": {
        "ack", "claim", "consumers", "drop", "floor", "heartbeat", "join", "lag", "leave",
        "mode", "nack", "name", "pending", "poll", "seek", "stats", "touch",
    },
    "Table": {
        "add", "clear", "delete", "durability", "entry", "get", "history", "is_dropped",
        "items", "keys", "name", "options", "pop", "popitem", "put", "put_many", "scan",
        "setdefault", "topic", "update", "values", "version", "watch",
    },
    "Series": {
        "fields", "is_dropped", "latest", "name", "options", "query", "read", "retention",
        "write", "write_many",
    },
    "Batch": {
        "commit", "group", "is_open", "queue", "series", "table", "topic",
    },
}  # fmt: skip
"""By the name of the handle's public class."""


class Documented:
    """A handle whose `dir()` has its documented names, and those that begin with an underscore."""

    def __dir__(self) -> Iterable[str]:
        # A handle with a type is a class of its own.
        kinds = [kind.__name__ for kind in type(self).__mro__]
        names = next(DOCUMENTED[kind] for kind in kinds if kind in DOCUMENTED)
        return [name for name in object.__dir__(self) if name.startswith("_") or name in names]
