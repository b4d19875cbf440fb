"""The part of a store that makes and finds topics, with or without a type of their values."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any, Unpack, cast, overload

from stratalog.errors import WrongKindError
from stratalog.format.names import check_topic_name
from stratalog.format.values import Codec, Encoding
from stratalog.handles.alter import check_same, redefinition
from stratalog.handles.kinds import SERIES
from stratalog.handles.topic import Topic
from stratalog.handles.typed import TypedTopic, codec_of, is_raw, typed_options
from stratalog.log.topic import TopicLog
from stratalog.model import T
from stratalog.options import TopicOptions
from stratalog.settings import Configuration, NewTopicSettings

if TYPE_CHECKING:
    from stratalog.handles.store import Store

TypeKey = tuple[str, Any, str | None]


class TopicStore:
    """The methods of a store for topics."""

    configuration: Configuration
    _handles: dict[str, Topic]
    _typed: dict[TypeKey, TypedTopic[Any]]
    """Handles with a type, by name, type and encoding."""
    _topic_options: TopicOptions

    @overload
    def topic(self, name: str, *, type: None = None, encoding: None = None) -> Topic: ...

    @overload
    def topic(
        self, name: str, *, type: builtins.type[T], encoding: Encoding | None = None
    ) -> Topic[T]: ...

    def topic(self, name: str, *, type: Any = None, encoding: Encoding | None = None) -> Topic[Any]:
        """Get the topic of that name; a writer creates it on first use, with default options.

        `type` is the type of its values: `str`, `dict`, `list`, a msgspec struct, a dataclass or a
        pydantic model; without it they are bytes. `encoding` is `json` (unless said otherwise) or
        `msgpack`. The topic remembers both, and refuses a type that cannot read what it holds.
        """
        store = self._store
        if store._view is not None and not store.is_closed:
            store._view.refresh()
        if type is not None or encoding is not None:
            return self._typed_topic(name, type, encoding)
        handle = self._handles.get(name) if isinstance(name, str) else None
        if handle is not None and not store.is_closed and not handle.is_dropped:
            return handle
        store.check_open()
        name = check_topic_name(name)
        log = store._catalog.get(name)
        if log is None:
            if store.is_read_only:
                log = store._catalog.find(name)  # raises an error that lists what exists
            else:
                log = store.create(name, self._topic_options, may_exist=True)
        return self.handle(name, log)

    def _typed_topic(self, name: str, type: Any, encoding: Encoding | None) -> Topic[Any]:
        if is_raw(type, encoding):
            return self.topic(name)
        store = self._store
        key = (name, type, encoding)
        handle = self._typed.get(key)
        if handle is not None and handle._is_current and not store.is_closed:
            return handle
        store.check_open()
        name = check_topic_name(name)
        log = store._catalog.get(name)
        codec = codec_of(log, type, encoding, name)
        if log is None:
            if store.is_read_only:
                log = store._catalog.find(name)  # raises an error that lists what exists
            else:
                wanted = typed_options(self._topic_options, codec)
                log = store.create(name, wanted, may_exist=True)
        return self.typed_handle(log, codec, encoding)

    def typed_handle(
        self, log: TopicLog, codec: Codec[Any], encoding: str | None
    ) -> TypedTopic[Any]:
        """A handle on a topic whose values are of a type; the topic remembers it."""
        self.declare(log, codec)
        key = (log.name, codec.type, encoding)
        handle = self._typed.get(key)
        if handle is None or not handle._is_current:
            plain = self.handle(log.name, log)
            handle = self._typed[key] = TypedTopic(self._store, log, plain, codec)
        return handle

    def declare(self, log: TopicLog, codec: Codec[Any]) -> None:
        """Have a topic remember the type of its values, durably.

        Raises `SchemaMismatchError` if the type cannot read what the topic may hold.
        """
        store = self._store
        if log.kind == SERIES:
            raise WrongKindError(
                f"{log.name!r} is a series: its records are batches of points, and have no type. "
                f"Read it with store.series({log.name!r})."
            )
        if store.is_read_only:
            typed_options(log.options, codec)
            return
        with store._topics_lock:
            log.check_dropped()
            options = typed_options(log.options, codec)
            if options != log.options:
                store.write_controls([redefinition(log, options)])

    def handle(self, name: str, log: TopicLog) -> Topic:
        """Return the one handle of a topic, made on first use."""
        handle = self._handles.setdefault(name, Topic(self._store, log))
        if handle.is_dropped:
            handle = self._handles[name] = Topic(self._store, log)
        return handle

    @overload
    def create_topic(
        self,
        name: str,
        *,
        exist_ok: bool = False,
        type: None = None,
        encoding: None = None,
        **options: Unpack[NewTopicSettings],
    ) -> Topic: ...

    @overload
    def create_topic(
        self,
        name: str,
        *,
        exist_ok: bool = False,
        type: builtins.type[T],
        encoding: Encoding | None = None,
        **options: Unpack[NewTopicSettings],
    ) -> Topic[T]: ...

    def create_topic(
        self,
        name: str,
        *,
        exist_ok: bool = False,
        type: Any = None,
        encoding: Encoding | None = None,
        **options: Unpack[NewTopicSettings],
    ) -> Topic[Any]:
        """Create a topic with options of its own: see `TopicOptions`.

        With `exist_ok` a topic that exists is returned; it must have the options that are given.
        `type` and `encoding` as in `topic`.
        """
        store = self._store
        store.check_writable()
        name = check_topic_name(name)
        TopicOptions.build(options)
        wanted = TopicOptions.build({**self.configuration.topic, **options})
        codec = None
        if not is_raw(type, encoding):
            codec = codec_of(store._catalog.get(name), type, encoding, name)
            wanted = typed_options(wanted, codec)
        log = store.create(name, wanted, may_exist=exist_ok)
        check_same(log, options)
        if codec is None:
            return self.handle(name, log)
        return self.typed_handle(log, codec, encoding)

    @property
    def _store(self) -> Store:
        return cast("Store", self)  # there is no other
