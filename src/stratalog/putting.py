"""The way into a queue: messages with a priority, a delay, a time to live, an id."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from itertools import repeat
from typing import TYPE_CHECKING, Any

from stratalog.consuming import delay_ns
from stratalog.errors import WrongTypeError
from stratalog.inputs import check_bytes, check_headers, check_text
from stratalog.log.extras import enter_record, settle_record
from stratalog.log.future import AppendFuture
from stratalog.log.topic import TopicLog
from stratalog.model import Durability, Put, Record
from stratalog.options import check_range, seconds
from stratalog.projections.delivery import Deliveries
from stratalog.projections.puts import put_once, put_plain_once

if TYPE_CHECKING:
    from stratalog.store import Store
    from stratalog.topic import Topic

Value = bytes | bytearray | memoryview | None

_new_put: Callable[..., Put] = tuple.__new__


class QueuePutting:
    """What a handle on a queue puts."""

    _store: Store
    _log: TopicLog
    _topic: Topic
    _engine: Deliveries | None
    _ttl: int
    """Nanoseconds that messages live which say nothing else; 0 is for ever."""

    def put(
        self,
        value: Value,
        # Not keyword-only: see `Topic.append`.
        priority: int = 0,
        ttl: float | timedelta | None = None,
        delay: float | timedelta | None = None,
        dedup_id: str | bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        durability: Durability | str | None = None,
    ) -> Put:
        """Put a message, and say where it is, once its durability class is satisfied.

        `priority` is 0 (the most urgent) to 255. After `ttl` seconds it is no longer delivered,
        before `delay` seconds not yet. If a message with the same `dedup_id` was put within the
        deduplication window, this one is not, and the place of that one is returned.
        """
        if (
            priority == 0 and ttl is None and delay is None and dedup_id is None
            and not self._ttl and self._engine is not None
        ):  # fmt: skip
            self._engine.most_urgent_put = 0
            offset = self._topic.append(value, None, headers, None, None, None, None, durability)
            return _new_put(Put, (offset, False))
        if (
            ttl is None and delay is None and headers is None and durability is None
            and type(priority) is int and 0 <= priority <= 255
            and type(value) is bytes and type(dedup_id) is str and dedup_id.isascii()
            and not self._ttl and (engine := self._engine) is not None
            and (log := self._log).is_plain
            and len(value) + len(dedup_id) + 288 <= log.plain_bytes_max
        ):  # fmt: skip
            # The way nearly every message with an id takes.
            if priority < engine.most_urgent_put:
                engine.most_urgent_put = priority
            return put_plain_once(log, dedup_id.encode(), value, priority)
        return self._put(value, priority, ttl, delay, dedup_id, headers, durability)

    def _put(
        self, value: Value, priority: int, ttl: Any, delay: Any, dedup_id: Any, headers: Any,
        durability: Any,
    ) -> Put:  # fmt: skip
        data, size, extras, ttl_ns, rank = self._checked(
            value, priority, ttl, delay, dedup_id, headers, durability
        )
        log = self._log
        key = extras.get("keys")
        if key is not None:
            queue = log.groups.queue
            assert queue is not None
            return put_once(log, queue, key, data, size, extras, ttl_ns, rank)
        if rank == log.rank and log.is_plain:
            offset, group = enter_record(log, data, size, extras, ttl_ns)
            settle_record(log, group)
        else:
            self._working()
            if ttl_ns:
                extras["ttl"] = ttl_ns
            offset = log.append(data, size, extras, rank)  # type: ignore[assignment]
        return _new_put(Put, (offset, False))

    def enter(
        self, value: Value, priority: int, ttl: Any, delay: Any, headers: Any, durability: Any
    ) -> tuple[AppendFuture, int]:
        """As `put` without an id, but never waits; and the rank of its class."""
        self._working()
        data, size, extras, ttl_ns, rank = self._checked(
            value, priority, ttl, delay, None, headers, durability
        )
        if ttl_ns:
            extras["ttl"] = ttl_ns
        return self._log.append(data, size, extras, rank, True, False), rank  # type: ignore[return-value]

    def _checked(
        self, value: Value, priority: int, ttl: Any, delay: Any, dedup_id: Any, headers: Any,
        durability: Any,
    ) -> tuple[bytes | None, int, dict[str, Any], int, int]:  # fmt: skip
        """A message as the log takes it: value, size, columns, time to live, rank of its class."""
        engine = self._engine or self._working()
        data = value if type(value) is bytes else check_bytes("value", value)
        size = len(data or b"") + 32
        extras: dict[str, Any] = {}
        if type(priority) is not int or not 0 <= priority <= 255:
            priority = check_range("priority", priority, 0, 255)
        if priority:
            extras["priorities"] = priority
        ttl_ns = self._ttl if ttl is None else round(seconds("ttl", ttl) * 1e9)
        if delay is not None and (wait := delay_ns(delay)):
            extras["not_before"] = self._store.clock.time_ns() + wait
        if headers:
            extras["headers"] = pairs = check_headers(headers)
            size += sum(len(name) + len(item) + 8 for name, item in pairs)
        if dedup_id is not None:
            extras["keys"] = key = check_id(dedup_id)
            size += len(key)
        log = self._log
        if size + 256 > log.plain_bytes_max:
            self._topic.check_size(size)
        rank = log.rank if durability is None else self._topic.rank(durability)
        if priority < engine.most_urgent_put:
            engine.most_urgent_put = priority
        return data, size, extras, ttl_ns, rank

    def put_many(self, messages: Iterable[Value | Record]) -> list[Put]:
        """Put messages as one atomic batch; after a crash either all of them are there or none.

        A `Record` brings its priority, headers, `expires_at` and `not_before`, and as its key the
        deduplication id: those that are duplicates are left out.
        """
        engine = self._working()
        items = list(messages)
        if not items:
            return []
        engine.most_urgent_put = 0
        if self._ttl:
            expires = self._store.clock.time_ns() + self._ttl
            items = [_expiring(item, expires) for item in items]
        has_records = any(issubclass(kind, Record) for kind in set(map(type, items)))
        if not has_records or all(_key(item) is None for item in items):
            first, last = self._topic.append_many(items)
            places = zip(range(first, last + 1), repeat(False))
            return list(map(_new_put, repeat(Put), places))
        return self._put_many_once(items)

    def _put_many_once(self, items: list[Any]) -> list[Put]:
        queue = self._log.groups.queue
        assert queue is not None
        puts: list[Put] = []
        with queue.lock:
            now = self._store.clock.time_ns()
            queue.tidy(now)
            new: list[Any] = []
            firsts: dict[bytes, int] = {}
            places: list[tuple[int, bool]] = []
            for item in items:
                key = _key(item)
                known = -1 if key is None else queue.dedup.find(key, now)
                if known >= 0 or (key is not None and key in firsts):
                    places.append((known if known >= 0 else ~firsts[key or b""], True))
                    queue.duplicates += 1
                    continue
                if key is not None:
                    firsts[key] = len(new)
                places.append((~len(new), False))
                new.append(item)
            base = self._topic.append_many(new)[0] if new else 0
            for key, index in firsts.items():
                queue.dedup.add(key, base + index, now + queue.window)
        for place, duplicate in places:
            puts.append(Put(place if place >= 0 else base + ~place, duplicate))
        return puts

    def _working(self) -> Deliveries:
        self._store.check_writable()
        self._log.check_dropped()
        assert self._engine is not None
        return self._engine


def check_id(dedup_id: Any) -> bytes:
    """A deduplication id as bytes."""
    if type(dedup_id) is str and dedup_id.isascii():
        return dedup_id.encode()
    if isinstance(dedup_id, bytes):
        return dedup_id
    if not isinstance(dedup_id, str):
        raise WrongTypeError(f"a dedup_id is text or bytes, not {type(dedup_id).__name__}")
    return check_text("dedup_id", dedup_id) or b""


def _key(item: Any) -> bytes | None:
    return item.key if isinstance(item, Record) else None


def _expiring(item: Any, expires: int) -> Record:
    record = item if isinstance(item, Record) else Record(value=item)
    if record.expires_at:
        return record
    return Record(
        record.value, record.key, record.headers, record.tag, record.node, record.timestamp, -1,
        record.priority, expires, record.not_before, record.operation,
    )  # fmt: skip
