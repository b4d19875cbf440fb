"""Common parts of all fuzzing: numbers that hurt, bytes changed, and the runner.

`STRATALOG_FUZZ=N` tries N inputs (1,000 at least) instead of 20,000, and `STRATALOG_FUZZ_SEED`
starts elsewhere. An input is made from the seed and its own number alone, so a failure names both.
"""

from __future__ import annotations

import os
import signal
import struct
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from stratalog.errors import FormatError, TooLargeError

INPUTS = max(1000, int(os.environ.get("STRATALOG_FUZZ", "20000")))
SEED = int(os.environ.get("STRATALOG_FUZZ_SEED", "1"))
HANG_SECONDS = 60

NOW = 1_700_000_000_000_000_000
NUMBERS = [
    0, 1, 2, 3, 7, 8, 9, 255, 256, 65535, 1 << 20, 1 << 30, (1 << 30) + 8, (1 << 31) - 1, 1 << 31,
    (1 << 32) - 1, 1 << 32, (1 << 62), (1 << 63) - (1 << 32), (1 << 63) - 1, 1 << 63, (1 << 64) - 1,
]  # fmt: skip

Outcome = str
Check = Callable[[Random], Outcome]


def some_number(rng: Random) -> int:
    """One at which something may overflow, or a small one."""
    return rng.choice(NUMBERS) if rng.random() < 0.8 else rng.randrange(64)


def mutate(rng: Random, data: bytes, word: int = 8) -> bytes:
    """Data with one thing changed; lengths stay multiples of `word`."""
    body = bytearray(data)
    words = len(body) // word
    at = word * rng.randrange(words + 1)
    kind = rng.randrange(8)
    if kind == 0 and len(body) >= 4:
        struct.pack_into(
            "<I", body, 4 * rng.randrange(len(body) // 4), some_number(rng) & 0xFFFFFFFF
        )
    elif kind == 1 and len(body) >= 8:
        struct.pack_into("<Q", body, 8 * rng.randrange(len(body) // 8), some_number(rng))
    elif kind == 2 and body:
        body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
    elif kind == 3:
        del body[at : at + word * rng.choice((1, 1, 2, 5))]
    elif kind == 4:
        body[at:at] = rng.choice((bytes(word), rng.randbytes(word), bytes(4 * word)))
    elif kind == 5:
        body[at:at] = body[max(0, at - 2 * word) : at]
    elif kind == 6 and body:
        place = rng.randrange(len(body))
        body[place : place + 1] = rng.choice((b"\xff", b"\0", b"\x80", b"\x7f"))
    elif body:  # a nudge: off by one is where parsers fail
        place = rng.randrange(len(body))
        body[place] = (body[place] + rng.choice((-1, 1))) & 255
    return bytes(body)


def anything(rng: Random, depth: int = 0) -> Any:
    """A value MessagePack can hold, nested or not."""
    kind = rng.randrange(9 if depth < 4 else 6)
    if kind < 6:
        return rng.choice((None, True, some_number(rng), 1.5, "text", b"bytes"))
    if kind < 8:
        return {rng.choice("abc"): anything(rng, depth + 1) for _ in range(rng.randrange(4))}
    return [anything(rng, depth + 1) for _ in range(rng.randrange(4))]


def _alarm(signum: int, frame: object) -> None:
    raise TimeoutError(f"no outcome after {HANG_SECONDS} seconds")


class Fuzz:
    """Runs a check on its share of the inputs, and counts what came out."""

    def __init__(self, record: Callable[[str, object], None], capsys: Any, name: str) -> None:
        self._record = record
        self._capsys = capsys
        self._name = name

    def run(self, share: float, check: Check) -> Counter[Outcome]:
        """Outcomes; raises what a decoder should not have raised, with the input's number."""
        outcomes: Counter[Outcome] = Counter()
        before = signal.signal(signal.SIGALRM, _alarm)
        try:
            for number in range(round(INPUTS * share)):
                signal.setitimer(signal.ITIMER_REAL, HANG_SECONDS)
                try:
                    outcomes[check(Random(f"{SEED} {self._name} {number}"))] += 1
                except (FormatError, TooLargeError) as error:
                    outcomes[type(error).__name__] += 1
                except BaseException as error:
                    error.add_note(f"{self._name}, seed {SEED}, input {number}")
                    raise
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        self._record("inputs", outcomes.total())
        self._record("seed", SEED)
        with self._capsys.disabled():
            print(f"\n{self._name}: {outcomes.total()} inputs, seed {SEED}, {dict(outcomes)}")
        return outcomes
