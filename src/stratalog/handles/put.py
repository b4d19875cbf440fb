"""The way into a queue: messages with a priority, a delay, a time to live, an id."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from itertools import repeat
from typing import TYPE_CHECKING, Any, Generic

from stratalog.arguments import check_bytes, check_headers, check_text, listed
from stratalog.consume.puts import put_once
from stratalog.consume.queue_engine import Deliveries
from stratalog.errors import OptionError, WrongTypeError
from stratalog.handles.consumer_arguments import check_due
from stratalog.handles.documented import Documented
from stratalog.log.append import append_record, enter_record
from stratalog.log.commit_group import TTL, Item
from stratalog.log.future import AppendFuture
from stratalog.log.topic import TopicLog
from stratalog.model import Durability, Put, Record, T
from stratalog.options import check_range, seconds

if TYPE_CHECKING:
    from stratalog.handles.store import Store
    from stratalog.handles.topic import Topic

Buffer = bytearray | memoryview

DELAY_BYTES = 16
"""Memory that a delayed message takes, rounded up."""

_new_put: Callable[..., Put] = tuple.__new__


class QueuePutting(Documented, Generic[T]):
    """The putting methods of a queue's handle."""

    _store: Store
    _log: TopicLog
    _topic: Topic
    _engine: Deliveries | None
    _ttl: int
    """Default time to live of messages in nanoseconds; 0 is for ever."""

    def put(
        self,
        value: T | Buffer,
        # Not keyword-only: see `Topic.append`.
        priority: int = 0,
        ttl: float | timedelta | None = None,
        delay: float | timedelta | None = None,
        dedup_id: str | bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        durability: Durability | str | None = None,
        at: float | datetime | None = None,
        dedup_window: float | timedelta | None = None,
    ) -> Put:
        """Put a message and return its place, once its durability class is satisfied.

        `priority` is 0 (the most urgent) to 255. The message is not delivered before `delay`
        seconds or the time `at`, nor after `ttl` seconds. If a message with the same `dedup_id` was
        put within the deduplication window, this one is not put, and the place of that one is
        returned; `dedup_window` is a shorter window than the queue's, for this call.
        """
        if (
            priority == 0 and ttl is None and delay is None and dedup_id is None
            and not self._ttl and self._engine is not None and at is None
            and dedup_window is None
        ):  # fmt: skip
            self._engine.most_urgent_put = 0
            offset = self._topic.append(
                value, None, headers, None, None, None, None, durability,  # type: ignore[arg-type]
            )  # fmt: skip
            return _new_put(Put, (offset, False))
        data, size, rank, items, key = self._checked(
            value, priority, ttl, delay, dedup_id, headers, durability, at
        )
        if key is None and dedup_window is not None:
            raise OptionError("dedup_window is for a message with a dedup_id. Give both.")
        log = self._log
        if not log.is_plain:
            self._working()
        if key is not None:
            window = None if dedup_window is None else self._window(dedup_window)
            return put_once(log, key, data, size, rank, items, window)
        return _new_put(Put, (append_record(log, data, size, rank, items), False))

    def _window(self, given: float | timedelta) -> int:
        """Check how long ago a duplicate may have been put; returns nanoseconds."""
        window = round(seconds("dedup_window", given) * 1e9)
        queue = self._log.groups.queue
        assert queue is not None
        if window > queue.window:
            raise OptionError(
                f"dedup_window={given!s} is longer than ids of queue {self._log.name!r} are kept: "
                f"{queue.window / 1e9:g} seconds. Open the queue with a longer dedup_window."
            )
        return window

    def enter(
        self,
        value: T | Buffer,
        priority: int,
        ttl: Any,
        delay: Any,
        headers: Any,
        durability: Any,
        at: Any = None,
    ) -> tuple[AppendFuture, int]:
        """Put a message without an id and without waiting; also returns the rank of its class."""
        self._working()
        data, size, rank, items, _ = self._checked(
            value, priority, ttl, delay, None, headers, durability, at
        )
        log = self._log
        offset, group = enter_record(log, data, size, rank, items, is_left=True)
        return log.shard.future(group, offset), rank

    def _checked(
        self, value: Any, priority: int, ttl: Any, delay: Any, dedup_id: Any, headers: Any,
        durability: Any, at: Any,
    ) -> tuple[bytes | None, int, int, list[Item], bytes | None]:  # fmt: skip
        """Check a message; returns the arguments of `append_record` after the first, and its id."""
        engine = self._engine or self._working()
        data = value if type(value) is bytes else check_bytes("value", value)
        size = 0 if data is None else len(data)
        items: list[Item] = []
        key: bytes | None = None
        if type(priority) is not int or not 0 <= priority <= 255:
            priority = check_range("priority", priority, 0, 255)
        if priority:
            items.append(("priorities", priority))
        if ttl_ns := self._ttl if ttl is None else round(seconds("ttl", ttl) * 1e9):
            items.append((TTL, ttl_ns))
        if (delay is not None or at is not None) and (
            due := check_due(delay, at, self._store.clock.time_ns())
        ):
            items.append(("not_before", due))
            engine.ensure(DELAY_BYTES)
        if headers:
            pairs = check_headers(headers)
            items.append(("headers", pairs))
            for name, item in pairs:
                size += len(name) + len(item) + 8
        if dedup_id is not None:
            key = check_id(dedup_id)
            items.append(("keys", key))
            size += len(key)
        log = self._log
        if size > log.single_bytes_max:
            self._topic.check_size(size)
        rank = log.rank if durability is None else self._topic.rank(durability)
        if priority < engine.most_urgent_put:
            engine.most_urgent_put = priority
        return data, size, rank, items, key

    def put_many(self, messages: Iterable[T | Buffer | Record[T]]) -> list[Put]:
        """Put messages as one atomic batch; after a crash either all of them are there or none.

        A `Record` brings its priority, headers, `expires_at` and `not_before`; its key is the
        deduplication id. Duplicates are left out.
        """
        engine = self._working()
        items = listed(messages)
        if not items:
            return []
        engine.most_urgent_put = 0
        if self._ttl:
            expires = self._store.clock.time_ns() + self._ttl
            items = [_expiring(item, expires) for item in items]
        has_records = any(issubclass(kind, Record) for kind in set(map(type, items)))
        if has_records:
            late = sum(isinstance(item, Record) and item.not_before > 0 for item in items)
            engine.ensure(DELAY_BYTES * late)
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
            queue.dedup.ask(len(firsts))
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
    """Encode a deduplication id."""
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
        record.priority, expires, record.not_before, record.operation, record.given_time,
    )  # fmt: skip
