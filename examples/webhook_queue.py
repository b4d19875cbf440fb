"""Webhooks into a durable queue: FastAPI answers at once, a pool of workers does the rest."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from fastapi import FastAPI, Header, Request

import stratalog.aio

HANDLED: set[bytes | None] = set()


async def handle(message: stratalog.aio.AsyncMessage) -> None:
    """Do what a webhook asks for; if it raises it is tried again, and ends as a dead letter."""
    if message.value == b"broken":
        raise ValueError("no such order")
    HANDLED.add(message.value)


def make_app(path: str) -> FastAPI:
    """The service: one store, one queue, and eight workers for as long as it runs."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with stratalog.aio.open(path) as store:
            hooks = app.state.hooks = await store.queue("webhooks", max_deliveries=3)
            stop = asyncio.Event()
            pool = asyncio.create_task(hooks.work(handle, tasks=8, stop=stop))
            yield
            stop.set()  # webhooks that are being handled are finished first
            await pool

    app = FastAPI(lifespan=lifespan)

    @app.post("/webhooks", status_code=202)
    async def receive(request: Request, x_delivery_id: str = Header()) -> dict[str, int]:
        # On the disk before the sender is told; one that is sent again is put once.
        put = await request.app.state.hooks.put(await request.body(), dedup_id=x_delivery_id)
        return {"offset": put.offset}

    return app


async def send(app: FastAPI, bodies: list[bytes]) -> None:
    """Be the senders, and wait until every webhook is handled or dead."""
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service")
    async with app.router.lifespan_context(app), client:
        for body in bodies * 2:  # senders repeat what they are not sure of
            await client.post("/webhooks", content=body, headers={"X-Delivery-Id": body.hex()})
        while not (dead := await app.state.hooks.dead_letters()) or len(HANDLED) < 20:
            await asyncio.sleep(0.01)
    print(len(HANDLED), "handled;", dead[0].value, dead[0].headers["dlq.reason"])


with tempfile.TemporaryDirectory() as directory:
    asyncio.run(send(make_app(directory), [b"order %d" % n for n in range(20)] + [b"broken"]))
