"""The process that `stratalog demo` kills: it appends, says what was acknowledged, and goes on.

Started as `python -m stratalog.cli.demo.victim PATH TOPIC`. Every acknowledged append is one line
on standard output, `offset value`, written at once and in one piece.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading

import stratalog

WORKERS = 3


def _work(topic: stratalog.Topic, worker: int) -> None:
    for number in itertools.count():
        value = f"child-{worker}-{number}"
        offset = topic.append(value.encode())
        try:
            # Shorter than PIPE_BUF, so lines of two threads never mix and none is cut in two.
            os.write(1, f"{offset} {value}\n".encode())
        except BrokenPipeError:
            return  # the process that wanted to kill this one is gone itself


def _main() -> None:
    path, name = sys.argv[1:]
    with stratalog.open(path, durability="fsync") as store:
        topic = store.topic(name)
        threads = [threading.Thread(target=_work, args=(topic, n)) for n in range(WORKERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    _main()
