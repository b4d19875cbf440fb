"""Running workloads: one process, contestants in turn, round after round."""

from __future__ import annotations

import gc
import os
import random
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack

from benchmarks.model import SEED, Measurement, NotInstalledError, Probe, Results, Trial, Workload

# About what the largest workload keeps at once.
WARM_UP_BYTES = 1536 << 20

Say = Callable[[str], None]


def touch(scratch: str, length: int) -> float:
    """Write and delete a file, so that what comes next finds memory; returns the seconds.

    A virtual machine's host hands memory out when it is first touched, at some 10 us a page, and
    may take free memory back soon after: 1 GiB of page cache took 3.6 s, again at once 0.2 s, and
    after a pause of one second 2.5 s (the guest had free page reporting, the likely reason). So
    one warm-up does not last: without this before each, a round would measure how long ago its
    neighbour had freed how much.
    """
    begin = time.perf_counter()
    path = os.path.join(scratch, "touched")
    data = bytes(1 << 20)
    with open(path, "wb", buffering=0) as file:
        for _ in range(length // len(data)):
            file.write(data)
    os.unlink(path)
    return time.perf_counter() - begin


def run(item: Workload | Probe, rounds: int, scratch: str, results: Results, say: Say) -> None:
    """Run one item of the catalogue and add what it finds to the results."""
    directory = os.path.join(scratch, item.name)
    os.makedirs(directory)
    begin = time.perf_counter()
    try:
        if isinstance(item, Probe):
            results.facts[item.name] = item.measure(directory)
        else:
            _compete(item, rounds, directory, results, say)
    finally:
        shutil.rmtree(directory)
        os.sync()
    results.seconds[item.name] = round(time.perf_counter() - begin, 1)


def _compete(workload: Workload, rounds: int, directory: str, results: Results, say: Say) -> None:
    entrants: list[tuple[Measurement, Trial]] = []
    order = random.Random(SEED)
    with ExitStack() as stack:
        for number, contestant in enumerate(workload.contestants):
            own = os.path.join(directory, str(number))
            os.mkdir(own)
            say(f"{workload.name}: setting up {contestant.name}")
            try:
                trial = stack.enter_context(contestant.setup(own))
            except NotInstalledError as error:
                results.skipped.append(f"{workload.name}: {contestant.name}: {error}")
                continue
            measurement = Measurement(
                workload.name, contestant.name, contestant.kind, workload.unit
            )
            entrants.append((measurement, trial))
        gc.collect()
        gc.freeze()  # what the harness holds is not to be looked through while others are timed
        for number in range(rounds + 1):
            # In another order every time: no contender always follows the same neighbour.
            order.shuffle(entrants)
            for measurement, trial in entrants:
                say(f"{workload.name}: round {number} of {rounds}, {measurement.contestant}")
                count, seconds = _once(trial, directory, workload.fresh_bytes)
                if number:  # the first round warms caches up
                    measurement.counts.append(count)
                    measurement.seconds.append(seconds)
        gc.unfreeze()
    names = [contestant.name for contestant in workload.contestants]
    entrants.sort(key=lambda entrant: names.index(entrant[0].contestant))
    results.measurements += [measurement for measurement, _ in entrants]


def _once(trial: Trial, directory: str, fresh_bytes: int) -> tuple[int, float]:
    if trial.prepare is not None:
        trial.prepare()
    if trial.is_settled:
        os.sync()  # so that no contender pays for what a neighbour left to be written
    touch(directory, fresh_bytes)
    begin = time.perf_counter()
    count = trial.work()
    return count, time.perf_counter() - begin
