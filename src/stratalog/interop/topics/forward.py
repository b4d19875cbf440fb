"""Forwarding records along the routers of topics, as the server does after a restart.

The server logs no record that a router made: it makes them again from those of the source, after
the router's position in the newest snapshot. Their numbers continue after the newest of the
destination. Their time is the source's here; the server gives them the time of the restart.
"""

from __future__ import annotations

from collections import Counter

from stratalog.interop.model import ForeignRoute
from stratalog.interop.topics.state import State, TopicState

_HOPS_MAX = 8
"""How often a record is forwarded at most, as in the server."""


def forward(state: State) -> list[str]:
    """Recreate the records of routers; returns names of routers that could not be followed."""
    by_name = {topic.name: topic for topic in state.topics.values()}
    cursors = {name: route.cursor for name, route in state.routes.items()}
    hops: Counter[tuple[int, int]] = Counter()
    blocked: set[str] = set()
    is_changed = True
    while is_changed:
        is_changed = False
        for name, route in state.routes.items():
            source, destination = by_name.get(route.source), by_name.get(route.destination)
            if source is None or destination is None or cursors[name] >= source.head:
                continue
            if destination.has_appends:
                blocked.add(name)
                continue
            _advance(route, source, destination, cursors[name], hops)
            cursors[name] = source.head
            is_changed = True
    return sorted(blocked)


def _advance(
    route: ForeignRoute,
    source: TopicState,
    destination: TopicState,
    cursor: int,
    hops: Counter[tuple[int, int]],
) -> None:
    """Forward the records of a source after a number."""
    for seq in sorted(seq for seq in source.records if seq > cursor):
        record = source.records[seq]
        count = hops[source.id, seq]
        if count >= _HOPS_MAX or not _is_chosen(route, record.tag):
            continue
        destination.head += 1
        hops[destination.id, destination.head] = count + 1
        destination.records[destination.head] = record._replace(
            seq=destination.head,
            node=record.node if route.keeps_node else None,
            tag=record.tag if route.keeps_tag else None,
        )


def _is_chosen(route: ForeignRoute, tag: str | None) -> bool:
    if route.tag is None:
        return True
    if tag is None:
        return False
    return tag.startswith(route.tag[:-1]) if route.tag.endswith("*") else tag == route.tag


__all__ = ["forward"]
