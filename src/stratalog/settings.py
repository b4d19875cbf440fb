"""Options as callers write them: keyword arguments with types, variables, a TOML file.

An option that is given in a call comes first, then the environment, then the file, then the
default. Options of a topic or a queue count when it is created; the log remembers them.

| option of | environment | TOML |
|---|---|---|
| the directory | `STRATALOG_PATH` | `path = "..."` |
| the store | `STRATALOG_SHARDS` | `[store]` |
| new topics | `STRATALOG_TOPIC_TTL` | `[topic]` |
| new queues | `STRATALOG_QUEUE_LEASE` | `[queue]` |

`STRATALOG_CONFIG` names the file.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NamedTuple, TypedDict

from stratalog.errors import OptionError, WrongTypeError
from stratalog.model import Durability
from stratalog.options import QueueOptions, StoreOptions, TopicOptions, check_known, from_text

Seconds = float | timedelta

PREFIX = "STRATALOG_"


class StoreSettings(TypedDict, total=False):
    """Options of `stratalog.open` beyond those that it names: see `StoreOptions`."""

    flush_interval: float
    sync_interval: float
    log_file_bytes: int
    log_chunk_bytes: int
    record_bytes_max: int
    batch_bytes_max: int
    expanded_bytes_max: int
    disk_reserve_bytes: int
    open_files_max: int
    series_max: int
    tail_bytes: int
    checkpoint_bytes: int
    checkpoint_interval: float
    snapshot_bytes: int
    snapshot_interval: float
    hot_segments: int
    hot_bytes: int
    lake_grace: float
    rewrite_ratio: float


class TopicSettings(TypedDict, total=False):
    """Options of a topic that can change: see `TopicOptions`."""

    compression: str
    ttl: Seconds | None
    retention: str
    retention_seconds: Seconds | None
    retention_bytes: int | None
    retention_records: int | None
    retention_segments_min: int
    retention_segments_max: int | None
    segment_records: int
    segment_bytes: int
    segment_seconds: Seconds | None
    compact: bool
    versions: int
    tombstone_seconds: Seconds
    lake: bool
    lake_retention: Seconds | None


class NewTopicSettings(TopicSettings, total=False):
    """Options of a topic that is created: see `TopicOptions`."""

    durability: Durability | str | None


class QueueSettings(TypedDict, total=False):
    """Options of a queue: see `QueueOptions`."""

    delivery: str
    lease: Seconds
    max_deliveries: int
    backoff: Seconds
    backoff_max: Seconds
    dedup_window: Seconds
    dedup_entries: int
    pending_max: int
    promote_after: Seconds | None
    ttl: Seconds | None


class NewQueueSettings(QueueSettings, total=False):
    """Options of a queue and of how its messages are kept: see `TopicOptions` for the latter."""

    compression: str
    retention_seconds: Seconds | None
    retention_bytes: int | None
    retention_records: int | None
    retention_segments_min: int
    retention_segments_max: int | None
    segment_records: int
    segment_bytes: int
    segment_seconds: Seconds | None


class Configuration(NamedTuple):
    """Options that the environment and a file give, by what they are of."""

    path: str | None
    store: Mapping[str, Any]
    topic: Mapping[str, Any]
    queue: Mapping[str, Any]

    def over(self, other: Configuration) -> Configuration:
        """Options of both; where both have one, it is this one's."""
        return Configuration(
            other.path if self.path is None else self.path,
            {**other.store, **self.store},
            {**other.topic, **self.topic},
            {**other.queue, **self.queue},
        )

    def options(self, given: Mapping[str, Any]) -> StoreOptions:
        """Options of a store: those of a call, which are None where none is given, over these."""
        values = {name: value for name, value in given.items() if value is not None}
        check_known("store option", given, StoreOptions.__dataclass_fields__)
        return StoreOptions.build({**self.store, **values}, {})

    def check(self, where: str) -> Configuration:
        """Raise unless all of it is possible."""
        try:
            StoreOptions.build(self.store, {})
            TopicOptions.build(self.topic)
            QueueOptions.build(self.queue)
        except (OptionError, WrongTypeError) as error:
            raise type(error)(f"{where}: {error}") from error
        return self


NOTHING = Configuration(None, {}, {}, {})


def from_environment(environment: Mapping[str, str]) -> Configuration:
    """Options of `STRATALOG_*` variables. Other tools may use the prefix: what is no option is not.

    An unknown name after `STRATALOG_TOPIC_` or `STRATALOG_QUEUE_` is an error.
    """
    found: dict[str, dict[str, Any]] = {"store": {}, "topic": {}, "queue": {}}
    for name, text in environment.items():
        if not name.startswith(PREFIX):
            continue
        scope, option = _scope(name.removeprefix(PREFIX).lower())
        types = {field.name: str(field.type) for field in dataclasses.fields(_KINDS[scope])}
        if scope == "store" and option not in types:
            continue
        try:
            check_known(f"{scope} option", [option], types)
        except OptionError as error:
            raise OptionError(f"{name}: {error}") from None
        found[scope][option] = from_text(name, text, types[option])
    path = environment.get(f"{PREFIX}PATH") or None
    return Configuration(path, **found).check("the environment")


def _scope(name: str) -> tuple[str, str]:
    for scope in ("topic", "queue"):
        if name.startswith(f"{scope}_"):
            return scope, name.removeprefix(f"{scope}_")
    return "store", name


_KINDS: dict[str, type[StoreOptions] | type[TopicOptions] | type[QueueOptions]] = {
    "store": StoreOptions, "topic": TopicOptions, "queue": QueueOptions,
}  # fmt: skip


def from_toml(text: str, where: str) -> Configuration:
    """Options of a TOML file; unknown names are errors."""
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise OptionError(f"{where} is not TOML: {error}") from None
    try:
        check_known("name", found, ["path", *_KINDS])
    except OptionError as error:
        raise OptionError(f"{where}: {error}") from None
    path = found.pop("path", None)
    if path is not None and not isinstance(path, str):
        raise WrongTypeError(f"{where}: path={path!r} must be text")
    for scope, options in found.items():
        if not isinstance(options, dict):
            raise WrongTypeError(f"{where}: {scope!r} must be a table, [{scope}]")
    tables = {scope: found.get(scope, {}) for scope in _KINDS}
    return Configuration(path, **tables).check(where)
