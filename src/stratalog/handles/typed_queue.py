"""A queue whose messages have a type."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

from stratalog.arguments import listed
from stratalog.format.values import Codec
from stratalog.handles.dead_letters import DeadLetters
from stratalog.handles.put import Buffer
from stratalog.handles.queue import Queue
from stratalog.handles.typed import encode_all
from stratalog.log.future import AppendFuture
from stratalog.log.topic import TopicLog
from stratalog.model import Delivery, Durability, Message, Put, Record, T
from stratalog.state.group_state import GroupState

if TYPE_CHECKING:
    from stratalog.handles.store import Store
    from stratalog.handles.topic import Topic


class TypedQueue(Queue[T]):
    """A queue whose messages are encoded and checked on the way in, and read on the way out."""

    def __init__(
        self, codec: Codec[T], store: Store, log: TopicLog, state: GroupState, topic: Topic
    ) -> None:
        super().__init__(store, log, state, topic)
        self._codec = codec
        self._encode = codec.encode
        self.dead = DeadLetters(store, log, codec)

    def __repr__(self) -> str:
        return f"<stratalog.Queue {self.name!r} of {self._codec.name}>"

    @property
    def type(self) -> builtins.type[T] | None:
        """The type of its messages."""
        return cast("builtins.type[T]", self._codec.type)

    def put(
        self,
        value: T | Buffer,
        priority: int = 0,
        ttl: float | timedelta | None = None,
        delay: float | timedelta | None = None,
        dedup_id: str | bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        durability: Durability | str | None = None,
        at: float | datetime | None = None,
        dedup_window: float | timedelta | None = None,
    ) -> Put:
        """Put a message: see `Queue.put`. Raises `InvalidValueError` if it does not fit the type.

        Nothing was written then.
        """
        data: Any = self._encode(value)
        return super().put(
            data, priority, ttl, delay, dedup_id, headers, durability, at, dedup_window
        )

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
        """As `put` without an id, but never waits; and the rank of its class."""
        data: Any = self._encode(value)
        return super().enter(data, priority, ttl, delay, headers, durability, at)

    def put_many(self, messages: Iterable[T | Buffer | Record[T]]) -> list[Put]:
        """Put messages as one atomic batch: see `Queue.put_many`."""
        return super().put_many(encode_all(self._encode, listed(messages)))

    def _get(
        self, limit: int, timeout: float | None, lease: Any, consumer: str
    ) -> list[Message[T]]:
        found: Any = super()._get(limit, timeout, lease, consumer)
        return self._codec.messages(found)

    def _typed(self, found: list[Message]) -> list[Message[T]]:
        return self._codec.messages(found)

    def _encoded(self, value: Any) -> Any:
        return self._encode(value)

    def peek(self, limit: int = 1) -> list[Delivery[T]]:
        """The next messages, in the order they would be delivered, without delivering them."""
        found: Any = super().peek(limit)
        return self._codec.deliveries(found)
