"""How much sooner two cores verify a store than one: `python -m benchmarks.spark_verify`.

Two processes, each with a session of its own that is warm, verify the same store in turn. What
it holds is plain records, which a core verifies at several GB/s: compressed ones would take it
longer, and then the start of a Spark job counts for less.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from typing import IO, Any

import stratalog
from benchmarks import machine
from benchmarks.model import RECORD_BYTES, records
from stratalog.spark import session
from stratalog.spark.jobs.verify import verify
from stratalog.spark.session import IN_PYTHON

GOAL = 1.7
CORES = (1, 2)
_BATCH = 10_000
_TOPICS = 4
_WARM_UP = 3


def prepare(path: str, length: int) -> None:
    """A closed store of so many bytes, all of them in sealed segments but the last of each."""
    values = records(_BATCH)
    with stratalog.open(path, durability="disk") as store:
        topics = [store.topic(f"topic-{number}") for number in range(_TOPICS)]
        for number in range(length // (_BATCH * RECORD_BYTES)):
            topics[number % _TOPICS].append_many(values)


def serve(path: str, cores: int) -> None:
    """Verify whenever a line comes, and answer with the seconds and bytes it took."""
    spark = session(f"local[{cores}]", config=IN_PYTHON)
    for _ in sys.stdin:
        report = verify(path, spark=spark)
        assert report.ok, report
        print(json.dumps([report.duration, report.counts.bytes]), flush=True)
    spark.stop()


def ask(process: subprocess.Popen[str]) -> tuple[float, int]:
    """Seconds and bytes of one verification."""
    requests, answers = _pipes(process)
    requests.write("\n")
    requests.flush()
    while not (line := answers.readline()).startswith("["):  # what Spark prints when it starts
        assert line, "the process has ended"
    seconds, length = json.loads(line)
    return seconds, length


def _pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout


def main() -> int:
    """Run it; a missed goal is no failure: machines are noisy."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_verify", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--bytes", type=int, default=2 << 30, help="of records, about")
    parser.add_argument("--scratch", default=None, help="where the data goes meanwhile")
    parser.add_argument("--out", default=None, help="a file for the figures, as JSON")
    parser.add_argument("--serve", nargs=2, metavar=("PATH", "CORES"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve[0], int(options.serve[1]))
        return 0
    times: dict[int, list[float]] = {cores: [] for cores in CORES}
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch, ExitStack() as stack:
        path = os.path.join(scratch, "store")
        prepare(path, options.bytes)
        processes = {}
        for cores in CORES:
            command = [sys.executable, "-m", "benchmarks.spark_verify", "--serve", path, str(cores)]
            processes[cores] = stack.enter_context(
                subprocess.Popen(
                    command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                )
            )  # fmt: skip
        length = 0
        for turn in range(_WARM_UP + options.rounds):
            for cores, process in processes.items():
                seconds, length = ask(process)
                if turn >= _WARM_UP:
                    times[cores].append(seconds)
        for process in processes.values():
            _pipes(process)[0].close()
        results: dict[str, Any] = {"machine": machine.facts(scratch)}
    one, two = (statistics.median(times[cores]) for cores in CORES)
    ratio = statistics.median(a / b for a, b in zip(times[1], times[2], strict=True))
    results |= {"bytes": length, "seconds": times, "ratio": ratio}
    print(
        f"{length / 1e9:.2f} GB: {one:.3f} s on one core ({length / one / 1e9:.1f} GB/s), "
        f"{two:.3f} s on two; ratio {ratio:.2f} ({'met' if ratio >= GOAL else 'missed'}: {GOAL})"
    )
    if options.out:
        with open(options.out, "w") as file:
            json.dump(results, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
