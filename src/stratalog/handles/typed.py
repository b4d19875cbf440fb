"""Handles with a type: values are encoded and checked on the way in, and read back as that type."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from stratalog.arguments import listed, listed_column
from stratalog.errors import OptionError
from stratalog.format.values import Codec, declared
from stratalog.handles.read import Time
from stratalog.handles.topic import Buffer, Topic, Value
from stratalog.log.commit_group import Group
from stratalog.log.future import AppendFuture
from stratalog.log.topic import TopicLog
from stratalog.model import Durability, Operation, Record, T
from stratalog.options import TopicOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from stratalog.handles.store import Store


class TypedTopic(Topic[T]):
    """A topic whose values have a type; its bytes are appended by the handle without one.

    That one may have been asked to time an append, so it is the one that all appends go through.
    """

    def __init__(self, store: Store, log: TopicLog, plain: Topic, codec: Codec[T]) -> None:
        super().__init__(store, log)
        self._plain = plain
        self._codec = codec
        self._encode = codec.encode
        self._declared = log.options.schema

    @property
    def _is_current(self) -> bool:
        """Whether the type is known to read all that the topic may hold."""
        return self._declared is self._log.options.schema and not self._log.is_dropped

    def __repr__(self) -> str:
        assert self._codec is not None
        return f"<stratalog.Topic {self.name!r} of {self._codec.name}>"

    def append(
        self,
        value: T | Buffer,
        key: Value = None,
        headers: Mapping[str, bytes] | None = None,
        tag: str | None = None,
        node: str | None = None,
        timestamp: Time | None = None,
        ttl: float | timedelta | None = None,
        durability: Durability | str | None = None,
    ) -> int:
        """Append one value and return its offset, once its durability class is satisfied.

        Raises `InvalidValueError` if it does not fit the type.
        """
        return self._plain.append(
            self._encode(value), key, headers, tag, node, timestamp, ttl, durability
        )

    def append_nowait(
        self,
        value: T | Buffer,
        *,
        key: Value = None,
        headers: Mapping[str, bytes] | None = None,
        tag: str | None = None,
        node: str | None = None,
        timestamp: Time | None = None,
        ttl: float | timedelta | None = None,
        durability: Durability | str | None = None,
    ) -> Future[int]:
        """Append one value without waiting for the disk: see `Topic.append_nowait`."""
        return self._plain.append_nowait(
            self._encode(value), key=key, headers=headers, tag=tag, node=node,
            timestamp=timestamp, ttl=ttl, durability=durability,
        )  # fmt: skip

    def append_many(
        self,
        records: Iterable[T | Buffer | Record[T]] | None = None,
        *,
        values: Iterable[T | Buffer | None] | None = None,
        keys: Iterable[Value] | None = None,
        headers: Iterable[Mapping[str, bytes] | None] | None = None,
        timestamps: Iterable[Time | None] | None = None,
        durability: Durability | str | None = None,
    ) -> tuple[int, int]:
        """Append values as one atomic batch, or columns: see `Topic.append_many`."""
        encode = self._encode
        return self._plain.append_many(
            None if records is None else encode_all(encode, listed(records)),
            values=None if values is None else list(map(encode, listed_column("values", values))),
            keys=keys,
            headers=headers,
            timestamps=timestamps,
            durability=durability,
        )

    def append_arrow(
        self, data: pa.RecordBatch | pa.Table, *, durability: Durability | str | None = None
    ) -> tuple[int, int]:
        """Append Arrow data, whose values are bytes as they are stored; each is checked."""
        assert self._codec is not None
        if "value" in data.schema.names:
            self._codec.check_raws(data.column("value").to_pylist())
        return self._plain.append_arrow(data, durability=durability)

    def enter(
        self, value: T | Buffer, rest: tuple[Any, ...], durability: Any
    ) -> tuple[AppendFuture, int]:
        """As `append_nowait`, but never waits, however much has gathered; and the class's rank."""
        return self._plain.enter(self._encode(value), rest, durability)

    def enter_many(
        self, records: Iterable[T | Buffer | Record[T]], durability: Durability | str | None
    ) -> tuple[Group, int, int, int]:
        """As `append_many` without waiting: the group to wait for, both offsets, the rank."""
        return self._plain.enter_many(encode_all(self._encode, listed(records)), durability)


def encode_all(encode: Any, items: list[Any]) -> list[Any]:
    """Values, and records of values, with their bytes instead."""
    return [
        encode_record(encode, item) if isinstance(item, Record) else encode(item) for item in items
    ]


def encode_record(encode: Any, record: Record[Any]) -> Record:
    """A record of a value with the value's bytes instead; one that deletes a key has none."""
    is_delete = record.operation == Operation.DELETE and record.raw is None
    fields = {name: getattr(record, name) for name in Record.__struct_fields__[1:]}
    return Record(None if is_delete else encode(record.value), **fields)


def typed_options(options: TopicOptions, codec: Codec[Any]) -> TopicOptions:
    """Options of a topic that has values of a type from now on.

    Raises `SchemaMismatchError` if the type cannot read what it may hold already.
    """
    schema = declared(codec, options.encoding, options.schema)
    if schema == options.schema:
        return options
    return TopicOptions.restore(options.to_dict() | {"encoding": codec.encoding, "schema": schema})


def codec_of(log: TopicLog | None, type: Any, encoding: str | None, name: str) -> Codec[Any]:
    """Make the codec of a type; `encoding=None` is the topic's own, or JSON."""
    kept = None if log is None else log.options.encoding
    chosen = encoding if encoding is not None or type is str or kept == "text" else kept
    return Codec(type, chosen, name)


def is_raw(type: Any, encoding: str | None) -> bool:
    """Whether values are bytes as they are given, because there is no type or it is `bytes`."""
    if type is not None and type is not bytes:
        return False
    if encoding is not None:
        raise OptionError(
            f"encoding={encoding!r} is for values of a type. Give type=..., or leave it out."
        )
    return True
