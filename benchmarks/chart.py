"""One picture of a run: bars against rivals and limits, and curves."""

from __future__ import annotations

from typing import Any

from benchmarks.catalogue import (
    BATCH,
    CLOSED_BY_RECORDS,
    CLOSED_BY_SEGMENTS,
    KILLED_LOG_MIB,
    OPEN_BY_BATCHES,
    OPEN_BY_RECORDS,
    OPEN_RECORDS,
    closed_name,
    killed_name,
    open_name,
    segments_name,
)
from benchmarks.model import Measurement, Results, rival
from benchmarks.report import number

_COLOURS = {"stratalog": "#0b6e99", "rival": "#b9bec4", "limit": "#e8c468"}
_PANELS = [
    ("append-one", "Append one record, not synced: us, less is better"),
    ("append-sync", "Append one record, synced: us, less is better"),
    ("append-many", "Append batches of 1000, not synced: ns a record, less is better"),
    ("append-many-sync", "Append batches of 1000, synced: ns a record, less is better"),
    ("read", "Read everything: M records/s, more is better"),
    ("segments-read", "Read sealed segments: M records/s, more is better"),
    ("queue-get", "Get and acknowledge a message, not synced: us, less is better"),
    ("queue-put", "Put a message, not synced: us, less is better"),
]
_WIDTH, _ROW_HEIGHT = 15.0, 0.3


def draw(path: str, machine: dict[str, Any], results: Results) -> bool:
    """Write the picture; False when nothing in this run can be drawn."""
    panels = [(name, title) for name, title in _PANELS if results.of(name)]
    curves = [_open_by_batches, _open_by_records] if results.of("open") else []
    curves += [_memory_curve] if "memory" in results.facts else []
    more = [_closed_by_records, _closed_by_segments, _killed_by_log]
    more = more if results.of("open-store") else []
    queues = [_queue_curve, _queue_open] if "queue-curve" in results.facts else []
    groups = [group for group in (curves, more, queues) if group]
    count = len(panels) + len(groups)
    if not count:
        return False
    rival("matplotlib").use("Agg")
    pyplot = rival("matplotlib.pyplot")
    rows = [range(first, min(first + 2, count)) for first in range(0, count, 2)]
    lengths = [len(results.of(name)) for name, _ in panels] + [8] * len(groups)
    heights = [max(lengths[index] for index in row) + 2 for row in rows]
    figure = pyplot.figure(figsize=(_WIDTH, sum(heights) * _ROW_HEIGHT + 1), layout="constrained")
    parts = figure.subfigures(len(rows), 1, height_ratios=heights, squeeze=False)
    for row, (part,) in zip(rows, parts, strict=True):
        cells = part.subfigures(1, len(row), squeeze=False)[0]
        for index, cell in zip(row, cells, strict=True):
            if index < len(panels):
                name, title = panels[index]
                _bars(cell.subplots(), title, results.of(name))
            else:
                group = groups[index - len(panels)]
                axes = cell.subplots(1, len(group), squeeze=False)[0]
                for axis, curve in zip(axes, group, strict=True):
                    curve(axis, results)
    figure.suptitle(
        f"Stratalog (blue), rivals (grey), what the machine can do (yellow): median, range of "
        f"rounds\n{machine['processor']}, {machine['cores']} cores, {machine['python']}, "
        f"{machine['kernel']}, {machine['file_system'].split()[0]}",
        fontsize=11,
    )
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return True


def _bars(axis: Any, title: str, items: list[Measurement]) -> None:
    items = sorted(items, key=lambda item: item.median, reverse=items[0].unit == "M/s")
    medians = [item.median for item in items]
    spans = [
        [item.median - min(item.values()) for item in items],
        [max(item.values()) - item.median for item in items],
    ]
    axis.barh(
        range(len(items)), medians, xerr=spans, color=[_COLOURS[item.kind] for item in items],
        error_kw={"elinewidth": 0.8, "ecolor": "#444444"},
    )  # fmt: skip
    for place, item in enumerate(items):
        axis.annotate(
            number(item.median), (max(item.values()), place), xytext=(4, 0),
            textcoords="offset points", va="center", fontsize=8,
        )  # fmt: skip
    axis.set_yticks(range(len(items)), [item.contestant for item in items], fontsize=8)
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.tick_params(axis="x", which="minor", labelbottom=False)
    # Room on the right for the last label; a logarithmic axis begins anywhere but at zero.
    axis.set_xlim(min(medians) / 3, max(max(item.values()) for item in items) * 3)
    _finish(axis, title)


def _open_by_batches(axis: Any, results: Results) -> None:
    sizes = [(OPEN_RECORDS, BATCH), *OPEN_BY_BATCHES]
    points = [(count / batch / 1000, size) for size in sizes for count, batch in [size]]
    _open_curve(axis, results, "open", [(x, open_name(*size)) for x, size in points])
    axis.set_xlabel("thousand batches of 1 M records together", fontsize=8)


def _open_by_records(axis: Any, results: Results) -> None:
    sizes = [*OPEN_BY_RECORDS, (OPEN_RECORDS, BATCH)]
    _open_curve(axis, results, "open", [(size[0] / 1e6, open_name(*size)) for size in sizes])
    axis.set_xlabel("million records in 1000 batches", fontsize=8)


def _closed_by_records(axis: Any, results: Results) -> None:
    points = [(count / 1e6, closed_name(count)) for count in CLOSED_BY_RECORDS]
    _open_curve(axis, results, "open-store", points, "Open a closed store: ms")
    axis.set_xlabel("million records in 100 topics", fontsize=8)


def _closed_by_segments(axis: Any, results: Results) -> None:
    points = [(OPEN_RECORDS / each, segments_name(each)) for each in CLOSED_BY_SEGMENTS]
    _open_curve(axis, results, "open-store", points, "Open a closed store: ms")
    axis.set_xlabel("segments of 1 M records together", fontsize=8)


def _killed_by_log(axis: Any, results: Results) -> None:
    points = [(float(size), killed_name(size)) for size in KILLED_LOG_MIB]
    _open_curve(axis, results, "open-store", points, "Open a killed store: ms")
    axis.set_xlabel("MiB of log to replay", fontsize=8)


def _open_curve(
    axis: Any, results: Results, workload: str, points: list[tuple[float, str]],
    title: str = "Open a killed log: ms",
) -> None:  # fmt: skip
    found = [(x, results.find(workload, name)) for x, name in points]
    heights = [(x, item.median * 1000) for x, item in found if item is not None]
    axis.plot(*zip(*heights, strict=True), "o-", color=_COLOURS["stratalog"])
    # The same height in all panels of a workload, so that they can be compared.
    top = max(item.median for item in results.of(workload)) * 1100
    axis.set_xlim(left=0)
    axis.set_ylim(0, top)
    _finish(axis, title)


def _queue_curve(axis: Any, results: Results) -> None:
    facts = results.facts["queue-curve"]
    for what, label in (("get + ack us", "get + ack"), ("get_many(100) + ack us", "get_many(100)")):
        points = _waiting(facts, what)
        axis.plot(*zip(*points, strict=True), "o-", label=label)
    axis.set_ylim(bottom=0)
    axis.legend(fontsize=8, frameon=False)
    _waiting_axis(axis, "A message of a queue: us")


def _queue_open(axis: Any, results: Results) -> None:
    points = _waiting(results.facts["queue-curve"], "open and get ms")
    axis.plot(*zip(*points, strict=True), "o-", color=_COLOURS["stratalog"])
    axis.set_ylim(0, 2 * max(height for _, height in points))
    _waiting_axis(axis, "Open a queue, and get one: ms")


def _waiting(facts: dict[str, Any], what: str) -> list[tuple[int, float]]:
    """Points of a curve: messages that wait, and what was measured then."""
    return [
        (int(name.split()[0]) * 1000, value)
        for name, value in facts.items()
        if name.endswith(f"waiting, {what}")
    ]


def _waiting_axis(axis: Any, title: str) -> None:
    axis.set_xscale("log")
    axis.set_xlabel("messages waiting", fontsize=8)
    _finish(axis, title)


def _memory_curve(axis: Any, results: Results) -> None:
    facts = results.facts["memory"]
    axis.plot(
        [count / 1e6 for count in facts["records"]],
        [value / (1 << 20) for value in facts["resident_bytes"]],
        "-", color="#0b6e99",
    )  # fmt: skip
    axis.set_xlabel("million records appended", fontsize=8)
    axis.set_ylim(0, max(facts["resident_bytes"]) / (1 << 20) * 1.3)
    _finish(axis, "Memory of the process: MiB")


def _finish(axis: Any, title: str) -> None:
    axis.set_title(title, fontsize=10, loc="left")
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
