"""A process that puts and consumes messages until it is killed, and says on a pipe what it did.

Run as `python -m tests.crash.worked PATH RUN`. A line `put OFFSET` goes out once a put returned,
`ack OFFSET` once an acknowledgement did, `got OFFSET COUNT` before work begins.
"""

from __future__ import annotations

import os
import random
import sys
import threading

import stratalog

PRODUCERS = 8
CONSUMERS = 8
LEASE = 0.5


def say(text: str) -> None:
    """One write call, shorter than a pipe's buffer: a line is whole or not there."""
    os.write(1, text.encode())


def produce(queue: stratalog.Queue, name: str, seed: int) -> None:
    """Put messages of all kinds, for ever."""
    dice = random.Random(seed)
    number = 0
    while True:
        number += 1
        text = f"{name}-{number}".encode()
        kind = dice.random()
        if kind < 0.2:
            puts = queue.put_many([text + b"-%d" % n for n in range(dice.randrange(1, 9))])
        elif kind < 0.4:
            puts = [queue.put(text, priority=dice.randrange(256), dedup_id=f"{name}-{number}")]
        elif kind < 0.5:
            puts = [queue.put(text, delay=0.05)]
        else:
            puts = [queue.put(text)]
        say("".join(f"put {put.offset}\n" for put in puts))
        # No faster than it is consumed, or the test would be about waiting.
        while len(queue) > 2000:
            threading.Event().wait(0.02)


def consume(queue: stratalog.Queue, name: str, seed: int) -> None:
    """Get, work, acknowledge or give back, for ever."""
    dice = random.Random(seed)
    while True:
        for message in queue.get_many(dice.choice((1, 1, 20)), timeout=5.0, consumer=name):
            say(f"got {message.offset} {message.delivery_count}\n")
            try:
                if dice.random() < 0.05:
                    queue.nack(message, reason="by chance")
                else:
                    queue.ack(message)
                    say(f"ack {message.offset}\n")
            except stratalog.LeaseLostError:
                pass


def main(path: str, run: int) -> None:
    """Start the threads and wait to be killed."""
    store = stratalog.open(path, log_file_bytes=1 << 20, snapshot_bytes=1 << 20)
    queue = store.queue("jobs", lease=LEASE, max_deliveries=0)
    for number in range(PRODUCERS):
        args = (queue, f"producer-{run}-{number}", 100 * run + number)
        threading.Thread(target=produce, args=args, daemon=True).start()
    for number in range(CONSUMERS):
        args = (queue, f"consumer-{run}-{number}", 1000 * run + number)
        threading.Thread(target=consume, args=args, daemon=True).start()
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
