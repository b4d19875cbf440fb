"""The one command: `python -m benchmarks`."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console

from benchmarks import machine, page, report
from benchmarks.catalogue import FULL, QUICK, catalogue
from benchmarks.chart import draw
from benchmarks.model import NotInstalledError, Probe, Results
from benchmarks.run import WARM_UP_BYTES, run, touch

_OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "results")
_WIDTH = 110  # of tables that go into a file


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the catalogue, or some of it. A missed goal is no failure: machines are noisy."""
    names = [item.name for item in catalogue(QUICK)]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two or three minutes, instead of ten")
    parser.add_argument(
        "--only", action="append", metavar="NAME",
        help=f"only what has this in its name; may be repeated. There are: {', '.join(names)}",
    )  # fmt: skip
    parser.add_argument("--out", default=_OUT, help="where results.json and pictures go")
    parser.add_argument("--scratch", help="where the data goes meanwhile; default: beside --out")
    parser.add_argument("--rounds", type=int, help="rounds of each workload, at least 2")
    options = parser.parse_args(arguments)

    scale = QUICK if options.quick else FULL
    rounds = options.rounds or scale.rounds
    wanted = options.only or [""]
    items = [i for i in catalogue(scale) if any(name in i.name for name in wanted)]
    if not items or rounds < 2:
        parser.error(f"nothing to run: --only is one of {', '.join(names)}; --rounds at least 2")

    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    results = Results()
    out = os.path.abspath(options.out)
    os.makedirs(out, exist_ok=True)
    parent = os.path.abspath(options.scratch) if options.scratch else os.path.dirname(out)
    os.makedirs(parent, exist_ok=True)
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix=".scratch-", dir=parent) as scratch:
        about = machine.facts(scratch)
        with console.status("warming up") as status:
            about["warm_up_seconds"] = [touch(scratch, WARM_UP_BYTES) for _ in range(2)]
            for item in items:
                run(item, rounds, scratch, results, status.update)
                if isinstance(item, Probe):
                    report.print_probe(console, item, results)
                else:
                    report.print_workload(console, item, results)
    report.print_goals(console, results)
    about["seconds"] = round(time.perf_counter() - begin, 1)
    path = os.path.join(out, "results.json")
    report.write_json(path, about, asdict(scale) | {"rounds": rounds}, results)
    console.print(f"{about['seconds']:.0f} s; written: {path}")
    try:
        for picture in draw(out, about, results):
            console.print(f"written: {picture}")
    except NotInstalledError as error:
        console.print(f"no picture: {error}", style="yellow")
    if out == _OUT:
        page.main([])
        console.print(f"written: {page.PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
