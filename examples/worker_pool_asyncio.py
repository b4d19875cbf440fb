"""A pool of workers in one event loop: each job and its result are one, and neither is lost.

Sixteen tasks wait for jobs, and none of them takes a thread. A job is acknowledged in the same
batch that appends its result and puts the next job: after a crash either all of that has happened
or nothing, so every job is done exactly once, however often the program is killed.
"""

from __future__ import annotations

import asyncio
import tempfile

import stratalog.aio
from stratalog.aio import AsyncMessage, AsyncStore

JOBS = 40
WORKERS = 16


async def work(store: AsyncStore, message: AsyncMessage) -> None:
    """Do one job: a page is fetched, and its title is to be indexed later."""
    page = (message.value or b"").decode()
    await asyncio.sleep(0.002)  # the network
    if page.endswith("7") and message.delivery_count == 1:
        raise ConnectionError(f"{page} did not answer")
    async with store.batch() as batch:
        batch.topic("pages").append(f"<title>{page}</title>".encode(), key=message.value)
        batch.queue("titles").put(page.encode(), dedup_id=page)
        batch.queue("fetch").ack(message)


async def worker(store: AsyncStore, left: asyncio.Semaphore) -> None:
    """Take jobs for as long as the program runs; one that fails comes again."""
    fetch = await store.queue("fetch")
    while True:
        try:
            async with fetch.get() as message:
                await work(store, message)
        except ConnectionError as error:
            print(f"again: {error}")
        else:
            left.release()


async def main(path: str) -> None:
    """Put some jobs, have them done, and look at what came of them."""
    async with stratalog.aio.open(path) as store:
        fetch = await store.queue("fetch", lease=30.0, max_deliveries=3)
        titles = await store.queue("titles")
        await fetch.put_many([f"page-{number}".encode() for number in range(JOBS)])
        done = asyncio.Semaphore(0)
        workers = [asyncio.create_task(worker(store, done)) for _ in range(WORKERS)]
        for _ in range(JOBS):
            await done.acquire()
        for task in workers:
            task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        pages = await store.topic("pages")
        print(f"{len(await pages.read_values())} pages, {await titles.size()} titles to index")
        print(f"{await fetch.size()} jobs left")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(directory))
