"""Routes as a projection of the log: the routes, and how far each has forwarded.

One projection for the whole store, because a route outlives its topics: a route whose source or
destination was dropped must stay visible until the route itself is dropped.

Invariants:
- A cursor moves in the frame that holds the forwarded records. So a record is in the destination
exactly once if it matches and its offset is below the cursor, and not at all otherwise.
- Frames may be applied in any order and again: the highest number of a change wins, cursors and
  counts only rise, and a route that was dropped stays dropped.

Concurrency: `apply` is called in log order by the holder of a commit lock, or by recovery. Readers
take no lock: a route's fields are replaced one by one, and the dictionary is copied by `all`.
"""

from __future__ import annotations

from collections.abc import Iterable

from stratalog.errors import CorruptionError
from stratalog.format.frame import FrameType
from stratalog.format.routes import RouteBody, decode_forward, decode_route
from stratalog.format.snapshot import RouteSnapshot, RoutesState
from stratalog.state.numbered import NUMBER_MAX, Defined, Numbered

ROUTE_FRAMES = (FrameType.ROUTE, FrameType.FORWARD)
"""Types of frames that belong to a route, not to a topic."""


class RouteState(Defined[RouteBody]):
    """One route."""

    __slots__ = ("cursor", "forwarded", "missed")

    def __init__(self, id: int) -> None:
        super().__init__(id)
        self.cursor = 0
        """Offsets of the source below this were processed, as durably as the records were
        forwarded."""
        self.forwarded = 0
        self.missed = 0
        """Offsets of the source that were evicted before they could be forwarded."""

    def redefine(self, version: int, body: RouteBody) -> None:
        """Take a definition over, unless a newer one is known."""
        if version > self.version:
            self.cursor = max(self.cursor, body.start)
        super().redefine(version, body)

    def advance(self, cursor: int, forwarded: int, missed: int) -> None:
        """Advance the cursor and counts; none goes back."""
        # The cursor last: a thread that sees it sees at least the counts that belong to it.
        self.forwarded = max(self.forwarded, forwarded)
        self.missed = max(self.missed, missed)
        self.cursor = max(self.cursor, cursor)


class Routes(Numbered[RouteState, RouteBody]):
    """All routes of a store."""

    def _new(self, id: int) -> RouteState:
        return RouteState(id)

    # --- from frames ----------------------------------------------------------------------

    def apply(self, type: int, base_offset: int, body: bytes) -> None:
        """Apply a `ROUTE` or a `FORWARD` frame."""
        if base_offset > NUMBER_MAX:
            raise CorruptionError(f"route frame with number {base_offset}, which is too large")
        if type == FrameType.ROUTE:
            self.define(base_offset, decode_route(body))
        else:
            forward = decode_forward(body)
            route = self.mentioned(forward.route)
            if route is not None:
                route.advance(base_offset, forward.forwarded, forward.missed)

    # --- snapshots ------------------------------------------------------------------------

    def capture(self) -> RoutesState:
        """Capture the state; commits while this runs may or may not be included."""
        next_id = self.next_id  # first: see `define`
        routes = [
            # The cursor before the counts, which may be newer: recovery applies them again.
            RouteSnapshot(route.version, route.cursor, route.forwarded, route.missed, route.body)
            for route in self.all()
            if route.body is not None
        ]
        return RoutesState(next_id, [route for route in routes if route.body.id < next_id])

    def restore(self, state: RoutesState) -> None:
        """Take over what `capture` returned; newer state stays."""
        routes = self.restored(state.next_id, [one.body for one in state.routes])
        for one, route in zip(state.routes, routes, strict=True):
            if route is not None:
                route.redefine(one.version, one.body)
                route.advance(one.cursor, one.forwarded, one.missed)

    # --- questions ------------------------------------------------------------------------

    def retained_from(self, source: int, topics: Iterable[int]) -> int:
        """Return the lowest offset of a topic that a route with a destination still needs."""
        cursors = [
            route.cursor
            for route in self.all()
            if route.body is not None and route.body.source == source
            and route.body.destination in topics
        ]  # fmt: skip
        return min(cursors, default=NUMBER_MAX)

    def makes_cycle(self, source: int, destination: int, node: str | None) -> bool:
        """Return whether a record could return to a topic it was in, if this route were added.

        A route with a node forwards only records of that node, and records keep their node. So a
        record of a node loops if every route of the cycle has this node or none.
        """
        bodies = [route.body for route in self.all() if route.body is not None]
        nodes = {body.node for body in bodies} | {None} if node is None else {node}
        for one in nodes:  # None is any node that no route names
            onward: dict[int, set[int]] = {}
            for body in bodies:
                if body.node is None or body.node == one:
                    onward.setdefault(body.source, set()).add(body.destination)
            reached, ahead = {destination}, [destination]
            while ahead:
                following = onward.get(ahead.pop(), set()) - reached
                reached |= following
                ahead += following
            if source in reached:
                return True
        return False
