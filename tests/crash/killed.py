"""A process that appends until it is killed, and says on a pipe what it was told.

Run as `python -m tests.crash.killed PATH SEED`. A line `topic offset` goes out once an fsync append
up to that offset returned. What a record holds follows from its topic and offset, so that any
reader can tell a record that was sent from one that was not.
"""

from __future__ import annotations

import random
import sys
import threading

import stratalog

THREADS = 3


def payload(topic: str, offset: int) -> bytes:
    """Compute the value of the record at an offset."""
    return random.Random(f"{topic}/{offset}").randbytes(1 + offset * 7 % 300)


def work(store: stratalog.Store, name: str, seed: int) -> None:
    """Append to a topic of one's own, in all the ways there are, for ever."""
    dice = random.Random(seed)
    topic = store.topic(name)
    while True:
        start = topic.next_offset
        count = dice.choice((1, 1, 1, 5, 40))
        values = [payload(name, start + number) for number in range(count)]
        durability = dice.choice(("fsync", "fsync", "disk"))
        if count == 1 and dice.random() < 0.3:
            last = topic.append_nowait(values[0], durability=durability).result()
        elif count == 1:
            last = topic.append(values[0], durability=durability)
        else:
            _, last = topic.append_many(values, durability=durability)
        if durability == "fsync":
            # One write call: a line of a killed process is whole or not there.
            sys.stdout.write(f"{name} {last}\n")
            sys.stdout.flush()


def main(path: str, seed: int) -> None:
    """Start the threads and wait to be killed."""
    store = stratalog.open(path, log_file_bytes=1 << 16)
    for number in range(THREADS):
        args = (store, f"topic-{number}", seed * THREADS + number)
        threading.Thread(target=work, args=args, daemon=True).start()
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
