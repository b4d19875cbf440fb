"""Bodies of `ROUTE` and `FORWARD` frames: what a route is, and how far it has come.

Both belong to no topic, and their headers have the id 0. A `ROUTE` frame's body is a `RouteBody`,
wrapped as other control bodies are; `base_offset` has the number of the change (0 when the route is
made), and the highest number wins, wherever it is replayed from.

A `FORWARD` frame says that records of a route's source below `base_offset` were dealt with: those
that match are in the destination, the others are not meant. It stands in one `MULTI` frame with the
records it speaks of, in the destination's shard, or alone where no record matched. All its numbers
only ever rise.

Forward body, little-endian:

| field | type | meaning |
|---|---|---|
| route | u64 | number of the route, from 1; never used again |
| forwarded | u64 | records that the route has forwarded so far |
| missed | u64 | offsets of the source that were gone before they could be forwarded |
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import msgspec

from stratalog.errors import CorruptionError
from stratalog.format.control import unwrap, wrap

FORWARD = struct.Struct("<QQQ")
FORWARD_BYTES = 24
assert FORWARD.size == FORWARD_BYTES

_NUMBER_MAX = (1 << 63) - 1


class RouteBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A route as the log remembers it."""

    id: int
    source: int
    """Topic id; so is `destination`."""
    destination: int
    source_name: str
    destination_name: str
    created_at: int
    start: int
    """Offset of the source that it begins with."""
    tag_glob: str | None = None
    key_prefix: bytes | None = None
    node: str | None = None
    is_paused: bool = False
    is_dropped: bool = False


class Forward(NamedTuple):
    """A decoded `FORWARD` body."""

    route: int
    forwarded: int
    missed: int


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(RouteBody)


def encode_route(route: RouteBody) -> bytes:
    """The body of a `ROUTE` frame."""
    return wrap(_encoder.encode(route))


def decode_route(body: bytes) -> RouteBody:
    """Read the body of a `ROUTE` frame."""
    try:
        route = _decoder.decode(unwrap(body))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptionError(f"route frame does not decode: {error}") from error
    check_route(route)
    return route


def check_route(route: RouteBody) -> None:
    """Raise `CorruptionError` if a number of a route cannot be."""
    ids = (route.id, route.source, route.destination)
    if not all(0 < id <= _NUMBER_MAX for id in ids) or not 0 <= route.start <= _NUMBER_MAX:
        raise CorruptionError("route frame has a number that cannot be")


def encode_forward(route: int, forwarded: int, missed: int) -> bytes:
    """The body of a `FORWARD` frame."""
    return FORWARD.pack(route, forwarded, missed)


def decode_forward(body: bytes) -> Forward:
    """Read the body of a `FORWARD` frame."""
    if len(body) != FORWARD_BYTES:
        raise CorruptionError(f"forward frame of {len(body)} bytes, {FORWARD_BYTES} expected")
    found = Forward(*FORWARD.unpack(body))
    if not 0 < found.route <= _NUMBER_MAX or max(found) > _NUMBER_MAX:
        raise CorruptionError("forward frame has a number that cannot be")
    return found
