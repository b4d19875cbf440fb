"""Routes: records of one topic are forwarded to another, each exactly once.

    route = store.route("orders", "orders-eu", tag_glob="eu-*")
    route.lag; route.pause(); route.resume(); route.drop()
    for route in store.routes(): print(route.stats())

A route is part of the store: it continues when the store is opened again. `upkeep/routes.py`
describes how it forwards, `docs/routes.md` what it promises.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, cast

from stratalog.arguments import check_bytes, check_text, check_timeout
from stratalog.errors import OptionError, UnknownRouteError, WrongKindError, WrongTypeError
from stratalog.format.routes import RouteBody
from stratalog.log.topic import TopicLog
from stratalog.options import check_range
from stratalog.reports import RouteStats
from stratalog.state.recovery import Replay
from stratalog.state.routes import RouteState
from stratalog.upkeep.rounds import Upkeep
from stratalog.upkeep.routes import Forwarder, missing
from stratalog.view import View

if TYPE_CHECKING:
    from stratalog.handles.store import Store


class Route:
    """Forwards records from a topic to a topic: see `Store.route`."""

    def __init__(self, store: Store, replay: Replay, forwarder: Forwarder | None, id: int) -> None:
        self._store = store
        self._replay = replay
        self._forwarder = forwarder
        self._id = id
        state = replay.routes.get(id)
        assert state is not None
        assert state.body is not None
        self._body = state.body

    @property
    def source(self) -> str:
        """Name of the topic that it reads."""
        return self._body.source_name

    @property
    def destination(self) -> str:
        """Name of the topic that it appends to."""
        return self._body.destination_name

    @property
    def tag_glob(self) -> str | None:
        """Forward only records with a tag that matches; None for all."""
        return self._body.tag_glob

    @property
    def key_prefix(self) -> bytes | None:
        """Forward only records with a key that begins with this; None for all."""
        return self._body.key_prefix

    @property
    def node(self) -> str | None:
        """Forward only records that this node appended; None for all."""
        return self._body.node

    @property
    def is_dropped(self) -> bool:
        """Whether the route was dropped."""
        return self._replay.routes.get(self._id) is None

    @property
    def is_paused(self) -> bool:
        """Whether it waits for `resume`."""
        body = self._state().body
        return body is not None and body.is_paused

    @property
    def lag(self) -> int:
        """Number of source offsets it has not processed: 0 if it has caught up."""
        return self.stats().lag

    @property
    def error(self) -> str | None:
        """Why it does not forward: a dropped topic, or the last failure; None if it does."""
        state = self._state()
        if self._forwarder is not None:
            return self._forwarder.problem(state)
        return missing(self._replay, state)

    def stats(self) -> RouteStats:
        """Numbers about the route."""
        state = self._state()
        body, source = state.body, self._replay.topics.get(self._body.source)
        assert body is not None
        error = self.error
        cursor = state.cursor if self._forwarder is None else self._forwarder.position(state)
        if source is not None and not self._store.is_read_only:
            source.flush()
        return RouteStats(
            id=body.id,
            source=body.source_name,
            destination=body.destination_name,
            tag_glob=body.tag_glob,
            key_prefix=body.key_prefix,
            node=body.node,
            state="failed" if error else "paused" if body.is_paused else "running",
            error=error,
            cursor=cursor,
            lag=0 if source is None else max(0, source.committed - cursor),
            forwarded=state.forwarded,
            missed=state.missed,
            created_at=body.created_at,
        )

    def pause(self) -> None:
        """Forward nothing from the return of this call until `resume`; survives a restart."""
        self._change(is_paused=True)

    def resume(self) -> None:
        """Continue where it was paused; retries at once what failed."""
        self._change()

    def drop(self) -> None:
        """Remove the route permanently; both topics keep their records."""
        self._change(is_dropped=True)

    def wait(self, timeout: float | None = None) -> bool:
        """Block until everything that was appended before this call is forwarded.

        Returns False if the time is up first, or if a topic or the route was dropped.
        """
        timeout = check_timeout(timeout)
        state = self._state()
        self._store.check_writable()
        assert self._forwarder is not None
        source = self._replay.topics.get(self._body.source)
        if source is None:
            return False
        source.shard.sync()  # only synced records are forwarded
        return self._forwarder.wait(state, source.committed, timeout)

    def _change(self, *, is_paused: bool = False, is_dropped: bool = False) -> None:
        self._store.check_writable()
        assert self._forwarder is not None
        self._forwarder.change(self._state(), is_paused=is_paused, is_dropped=is_dropped)

    def _state(self) -> RouteState:
        self._store.check_open()
        self._store.look_for_routes()
        state = self._replay.routes.get(self._id)
        if state is None:
            raise UnknownRouteError(
                f"The route from {self.source!r} to {self.destination!r} was dropped. "
                "Call store.route() to make it again."
            )
        return state

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Route) and (self._replay, self._id) == (other._replay, other._id)

    def __hash__(self) -> int:
        return hash((id(self._replay), self._id))

    def __repr__(self) -> str:
        return f"<stratalog.Route {self.source!r} -> {self.destination!r}>"


class RouteStore:
    """The methods of a store for routes."""

    _replay: Replay
    _topics_lock: threading.Lock
    _upkeep: Upkeep | None
    _view: View | None

    def route(
        self,
        source: str,
        destination: str,
        tag_glob: str | None = None,
        key_prefix: bytes | str | None = None,
        node: str | None = None,
        *,
        start: str | int = "earliest",
    ) -> Route:
        """Forward records of a topic to another one, each exactly once, from now on.

        Returns the existing route between the two if it has the same conditions. A new route begins
        with the oldest record, with the next one to be appended (`start="latest"`), or at an
        offset. Both topics are created on first use.
        """
        store = cast("Store", self)
        store.check_writable()
        tag_glob, prefix, node = _conditions(tag_glob, key_prefix, node)
        if start not in ("earliest", "latest"):
            start = check_range("start", start, 0, 1 << 62)
        one, other = store.topic(source).log, store.topic(destination).log
        _check_topics(one, other)
        assert self._upkeep is not None
        with self._topics_lock:
            for topic in (one, other):
                topic.check_dropped()
            found = self._between(one, other)
            if found is not None:
                body = found.body
                assert body is not None
                if (body.tag_glob, body.key_prefix, body.node) != (tag_glob, prefix, node):
                    raise OptionError(
                        f"There is a route from {source!r} to {destination!r} with other "
                        f"conditions: tag_glob={body.tag_glob!r}, key_prefix={body.key_prefix!r}, "
                        f"node={body.node!r}. Drop it first, or route to another topic."
                    )
            else:
                if self._replay.routes.makes_cycle(one.id, other.id, node):
                    raise OptionError(
                        f"A route from {source!r} to {destination!r} makes a cycle: a record would "
                        "be forwarded for ever. Give the routes of the cycle different nodes "
                        "(node=), so that each forwards only what its own node has appended."
                    )
                found = self._upkeep.forwarder.create(
                    RouteBody(
                        1, one.id, other.id, one.name, other.name, store.clock.time_ns(),
                        _first(one, start), tag_glob, prefix, node,
                    )
                )  # fmt: skip
            return Route(store, self._replay, self._upkeep.forwarder, found.id)

    def routes(self) -> list[Route]:
        """List all routes in order of creation, including those with a dropped topic."""
        store = cast("Store", self)
        store.check_open()
        self.look_for_routes()
        forwarder = None if self._upkeep is None else self._upkeep.forwarder
        return [
            Route(store, self._replay, forwarder, state.id) for state in self._replay.routes.all()
        ]

    def look_for_routes(self) -> None:
        """Take in routes that another process has written since."""
        if self._view is not None:
            self._view.refresh()

    def _between(self, source: TopicLog, destination: TopicLog) -> RouteState | None:
        for state in self._replay.routes.all():
            body = state.body
            if body is not None and (body.source, body.destination) == (source.id, destination.id):
                return state
        return None


def _conditions(
    tag_glob: Any, key_prefix: Any, node: Any
) -> tuple[str | None, bytes | None, str | None]:
    for what, text in (("tag_glob", tag_glob), ("node", node)):
        check_text(what, text)
    if isinstance(key_prefix, str):
        key_prefix = check_text("key_prefix", key_prefix)
    return tag_glob, check_bytes("key_prefix", key_prefix), node


def _check_topics(source: TopicLog, destination: TopicLog) -> None:
    if source is destination:
        raise OptionError(
            f"A route from {source.name!r} to itself would forward its records for ever. Give it "
            "another destination."
        )
    if destination.kind != "topic":
        raise WrongKindError(
            f"{destination.name!r} is a {destination.kind}, and routes lead to topics. Route to a "
            "topic, and consume that with a group."
        )
    for topic in (source, destination):
        if topic.is_ephemeral:
            raise OptionError(
                f"Topic {topic.name!r} is ephemeral: its records are never in the log, so they "
                "cannot be forwarded exactly once. Route between topics of another durability."
            )


def _first(source: TopicLog, start: str | int) -> int:
    """Resolve the source offset that a new route begins with."""
    source.flush()
    if start == "earliest":
        return source.earliest
    if start == "latest":
        return source.committed
    if not isinstance(start, int):
        raise WrongTypeError(f"start={start!r} must be 'earliest', 'latest' or an offset")
    if start > source.committed:
        raise OptionError(
            f"start={start} is after the end of topic {source.name!r}: the next offset is "
            f"{source.committed}"
        )
    return start
