"""A few pictures of a run, each of one question, with few bars and axes that begin at zero.

    python -m benchmarks.chart            draw them again from results.json

All contestants, ranges and rounds are in the tables of docs/benchmarks.md: a picture shows the
figures that answer its question. A bar that would make all others invisible is cut, and says so.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, NamedTuple

from benchmarks.catalogue import CLOSED_BY_RECORDS, KILLED_LOG_MIB, closed_name, killed_name
from benchmarks.model import Measurement, Results, rival
from benchmarks.report import number

_COLOURS = {"stratalog": "#0b6e99", "rival": "#b9bec4", "limit": "#e8c468"}

# A bar that is so many times longer than the longest of ours is cut.
_CUT = 9.0


class Panel(NamedTuple):
    """Bars of one workload: who is shown, and under which name."""

    workload: str
    title: str
    shown: dict[str, str]


_PICTURES = {
    "appending.png": [
        Panel("append-sync", "Append one record, on the disk when it returns (us)", {
            "pwrite + fdatasync": "the disk itself", "stratalog": "Stratalog",
            "rocksdict": "RocksDB", "sqlite3 FULL": "SQLite", "lmdb": "LMDB",
            "stratalog, 16 threads": "Stratalog, 16 threads",
            "stratalog, 256 in flight": "Stratalog, 256 in flight",
        }),
        Panel("append-one", "Append one record, synced within a second (us)", {
            "os.write": "one os.write", "stratalog disk": "Stratalog", "lmdb": "LMDB",
            "rocksdict": "RocksDB", "sqlite3 OFF": "SQLite",
        }),
        Panel("append-many", "Append 1000 at a time: nanoseconds a record", {
            "join + os.write": "join and os.write", "stratalog": "Stratalog",
            "rocksdict WriteBatch": "RocksDB", "lmdb putmulti": "LMDB",
            "sqlite3 OFF executemany": "SQLite",
        }),
    ],
    "reading.png": [
        Panel("read", "Read everything: million records a second (more is better)", {
            "stratalog read_arrow": "Stratalog, as Arrow",
            "stratalog read_values": "Stratalog, values", "stratalog read": "Stratalog, records",
            "lmdb": "LMDB", "rocksdict": "RocksDB", "sqlite3": "SQLite",
        }),
    ],
    "queues.png": [
        Panel("queue-put", "Put a message (us)", {
            "stratalog put": "Stratalog", "litequeue put": "litequeue",
            "persist-queue put": "persist-queue",
        }),
        Panel("queue-get", "Get and acknowledge a message (us)", {
            "stratalog get + ack": "Stratalog", "stratalog get_many(100) + ack":
            "Stratalog, 100 at a time", "rocksdict get + delete": "RocksDB, get and delete",
            "litequeue pop + done": "litequeue", "persist-queue get + ack": "persist-queue",
        }),
    ],
}  # fmt: skip


def draw(directory: str, machine: dict[str, Any], results: Results) -> list[str]:
    """Write the pictures that this run has figures for; returns their paths."""
    rival("matplotlib").use("Agg")
    pyplot = rival("matplotlib.pyplot")
    written = []
    for name, panels in _PICTURES.items():
        found = [(panel, _items(panel, results)) for panel in panels]
        found = [(panel, items) for panel, items in found if items]
        if found:
            heights = [len(items) + 1.2 for _, items in found]
            figure, axes = pyplot.subplots(
                len(found), 1, figsize=(8.0, 0.36 * sum(heights) + 0.9), squeeze=False,
                height_ratios=heights, layout="constrained",
            )  # fmt: skip
            for (axis,), (panel, items) in zip(axes, found, strict=True):
                _bars(axis, panel, items)
            written.append(_save(pyplot, figure, directory, name, machine))
    if results.of("open-store"):
        figure, axes = pyplot.subplots(1, 2, figsize=(8.0, 3.2), layout="constrained")
        _opening(axes, results)
        written.append(_save(pyplot, figure, directory, "opening.png", machine))
    return written


def _items(panel: Panel, results: Results) -> list[Measurement]:
    found = [results.find(panel.workload, contestant) for contestant in panel.shown]
    return [item for item in found if item is not None]


def _save(pyplot: Any, figure: Any, directory: str, name: str, machine: dict[str, Any]) -> str:
    figure.suptitle(
        f"median of all rounds; {machine['cores']} cores, {machine['python']}, "
        f"{machine['file_system'].split()[0]}", fontsize=8, color="#666666", x=0.01, ha="left",
    )  # fmt: skip
    path = os.path.join(directory, name)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path


def _bars(axis: Any, panel: Panel, items: list[Measurement]) -> None:
    items = sorted(items, key=lambda item: item.median, reverse=items[0].unit == "M/s")
    ours = max(item.median for item in items if item.kind == "stratalog")
    most = min(max(item.median for item in items), _CUT * ours)
    for place, item in enumerate(items):
        is_cut = item.median > most
        axis.barh(place, min(item.median, most), color=_COLOURS[item.kind], height=0.7)
        text = f"{number(item.median)}{' (the bar is cut)' if is_cut else ''}"
        axis.annotate(
            text, (min(item.median, most), place), xytext=(4, 0), textcoords="offset points",
            va="center", fontsize=9,
        )  # fmt: skip
    axis.set_yticks(range(len(items)), [panel.shown[item.contestant] for item in items])
    axis.invert_yaxis()
    axis.set_xlim(0, most * 1.25)
    axis.set_xticks([])
    _finish(axis, panel.title)
    axis.spines["bottom"].set_visible(False)


def _opening(axes: Any, results: Results) -> None:
    curves = [
        ([(count / 1e6, closed_name(count)) for count in CLOSED_BY_RECORDS],
         "Open a closed store: ms", "million records in 100 topics"),
        ([(float(size), killed_name(size)) for size in KILLED_LOG_MIB],
         "Open a killed store: ms", "MiB of log that are replayed"),
    ]  # fmt: skip
    for axis, (points, title, label) in zip(axes, curves, strict=True):
        found = [(x, results.find("open-store", name)) for x, name in points]
        heights = [(x, item.median * 1000) for x, item in found if item is not None]
        axis.plot(*zip(*heights, strict=True), "o-", color=_COLOURS["stratalog"])
        for x, height in heights:
            axis.annotate(
                number(height), (x, height), xytext=(0, 6), textcoords="offset points",
                ha="center", fontsize=8,
            )  # fmt: skip
        widest = max(x for x, _ in heights)
        axis.set_xlim(-0.06 * widest, 1.1 * widest)
        axis.set_ylim(0, max(height for _, height in heights) * 1.3)
        axis.set_xlabel(label, fontsize=9)
        _finish(axis, title)


def _finish(axis: Any, title: str) -> None:
    axis.set_title(title, fontsize=10, loc="left")
    axis.tick_params(labelsize=9, length=0)
    axis.spines[["top", "right"]].set_visible(False)


def main() -> int:
    """Draw the pictures of the run that is kept here again."""
    directory = os.path.join(os.path.dirname(os.path.abspath(__file__)), "results")
    with open(os.path.join(directory, "results.json")) as file:
        data = json.load(file)
    fields = ("workload", "contestant", "kind", "unit", "counts", "seconds")
    kept = [Measurement(*(item[name] for name in fields)) for item in data["measurements"]]
    for path in draw(directory, data["machine"], Results(kept, data["facts"])):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
