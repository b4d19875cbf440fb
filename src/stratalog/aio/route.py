"""Routes for asyncio: see `stratalog.handles.route`."""

from __future__ import annotations

from functools import partial

from stratalog.aio.runner import Runner
from stratalog.handles.route import Route
from stratalog.reports import RouteStats


class AsyncRoute:
    """Forwards records from a topic to a topic: see `Store.route`."""

    def __init__(self, runner: Runner, route: Route) -> None:
        self._runner = runner
        self._route = route

    @property
    def blocking(self) -> Route:
        """Return this route for code in threads: all of its methods may wait."""
        return self._route

    @property
    def source(self) -> str:
        """Name of the topic that is read."""
        return self._route.source

    @property
    def destination(self) -> str:
        """Name of the topic that is appended to."""
        return self._route.destination

    @property
    def is_dropped(self) -> bool:
        """Whether the route is gone."""
        return self._route.is_dropped

    async def lag(self) -> int:
        """Count the offsets of the source that it has not dealt with: 0 if it has caught up."""
        return (await self.stats()).lag

    async def stats(self) -> RouteStats:
        """Numbers about the route, and why it does not forward if it does not."""
        return await self._runner.run(self._route.stats)

    async def pause(self) -> None:
        """Forward nothing more, from when this returns until `resume`; survives a restart."""
        await self._runner.run(self._route.pause)

    async def resume(self) -> None:
        """Go on where it was paused."""
        await self._runner.run(self._route.resume)

    async def drop(self) -> None:
        """Remove the route for good; both topics keep their records."""
        await self._runner.run(self._route.drop)

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until everything that was appended before this call is forwarded."""
        return await self._runner.run(partial(self._route.wait, timeout))

    def __repr__(self) -> str:
        return f"<stratalog.aio.AsyncRoute {self.source!r} -> {self.destination!r}>"
