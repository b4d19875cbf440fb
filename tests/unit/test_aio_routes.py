"""Routes in asyncio: the same routes, with waiting that an event loop can do."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import stratalog.aio
from stratalog.errors import ClosedError, OptionError, UnknownRouteError


def test_a_route_is_made_waited_for_and_dropped(tmp_path: Path) -> None:
    """With all that a route can do; the loop goes on meanwhile."""

    async def work() -> None:
        async with stratalog.aio.open(tmp_path / "store") as store:
            orders = await store.topic("orders")
            route = await store.route("orders", "eu", tag_glob="eu-*", start="earliest")
            await orders.append(b"1", tag="eu-1")
            await orders.append(b"2", tag="us-1")
            assert await route.wait(30.0)
            assert await route.lag() == 0
            assert (await route.stats()).forwarded == 1
            assert (route.source, route.destination) == ("orders", "eu")
            await route.pause()
            await orders.append(b"3", tag="eu-2")
            assert not await route.wait(0.01)
            await route.resume()
            assert await route.wait(30.0)
            (found,) = await store.routes()
            assert found.blocking == route.blocking
            assert repr(found) == "<stratalog.aio.AsyncRoute 'orders' -> 'eu'>"
            with pytest.raises(OptionError, match="cycle"):
                await store.route("eu", "orders")
            await route.drop()
            assert route.is_dropped
            with pytest.raises(UnknownRouteError):
                await route.lag()
            eu = await store.topic("eu")
            assert [r.value async for r in eu.read()] == [b"1", b"3"]  # type: ignore[union-attr]
        with pytest.raises(ClosedError):
            await route.stats()

    asyncio.run(work())
