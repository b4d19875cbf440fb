"""Results for machines (JSON) and for people (tables)."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.goals import Outcome, outcomes
from benchmarks.model import RECORD_BYTES, SEED, Measurement, Probe, Results, Workload

_COLOURS = {"stratalog": "bold cyan", "rival": "", "limit": "dim"}


def write_json(path: str, machine: dict[str, Any], scale: dict[str, Any], results: Results) -> None:
    """Everything, all rounds included."""
    data = {
        "machine": machine,
        "scale": {"seed": SEED, "record_bytes": RECORD_BYTES, **scale},
        "goals": [_goal(outcome) for outcome in outcomes(results)],
        "measurements": [_measurement(results, item) for item in results.measurements],
        "facts": results.facts,
        "skipped": results.skipped,
        "seconds": results.seconds,
    }
    with open(path, "w") as file:
        json.dump(data, file, indent=1)
        file.write("\n")


def _goal(outcome: Outcome) -> dict[str, Any]:
    goal = outcome.goal
    return {
        "name": goal.name,
        "goal": f"{goal.relation} {goal.limit:g} {goal.unit}",
        "measured": outcome.measured,
        "is_met": outcome.is_met,
    }


def _measurement(results: Results, item: Measurement) -> dict[str, Any]:
    return {
        **asdict(item),
        "median": item.median,
        "best": item.best,
        "overall": item.overall,
        "spread": item.spread,
        "times_of_stratalog": _against(results, item),
    }


def base(results: Results, workload: str) -> str | None:
    """Whom the others of a workload are compared with: Stratalog's first contestant."""
    own = [item.contestant for item in results.of(workload) if item.kind == "stratalog"]
    return own[0] if own else None


def _against(results: Results, item: Measurement) -> float | None:
    name = base(results, item.workload)
    ratios = results.ratio(item.workload, item.contestant, name) if name else None
    return None if ratios is None else statistics.median(ratios)


def print_workload(console: Console, workload: Workload, results: Results) -> None:
    """Format one workload: all numbers, and how many times Stratalog's time they take."""
    table = Table(title=workload.title, title_justify="left")
    table.add_column("contestant")
    for column in ("median", "best", "overall", "spread", "time, ours = 1"):
        table.add_column(column, justify="right")
    for item in results.of(workload.name):
        numbers = [f"{number(value)} {item.unit}" for value in (item.median, item.best)]
        against = _against(results, item)
        table.add_row(
            item.contestant, *numbers, number(item.overall), f"{item.spread:.0%}",
            "" if against is None else number(against), style=_COLOURS[item.kind],
        )  # fmt: skip
    console.print(table)


def print_probe(console: Console, probe: Probe, results: Results) -> None:
    """Format the counted quantities."""
    table = Table(title=probe.title, title_justify="left", show_header=False)
    for name, value in results.facts[probe.name].items():
        shown = _first_to_last(value) if isinstance(value, list) else number(value)
        table.add_row(name.replace("_", " "), shown)
    console.print(table)


def print_goals(console: Console, results: Results) -> None:
    """Every goal, what was measured, and whether it was met."""
    table = Table(title="Goals", title_justify="left")
    for column in ("goal", "wanted", "measured", ""):
        table.add_column(column, justify="right" if column in ("wanted", "measured") else "left")
    for outcome in outcomes(results):
        goal = outcome.goal
        table.add_row(
            goal.name, f"{goal.relation} {goal.limit:g} {goal.unit}",
            f"{number(outcome.measured)} {goal.unit}",
            "[green]met[/]" if outcome.is_met else "[red]missed[/]",
        )  # fmt: skip
    if table.row_count:
        console.print(table)
    for skipped in results.skipped:
        console.print(f"skipped {skipped}", style="yellow")


def number(value: float) -> str:
    """Three digits that matter, never with an exponent."""
    if isinstance(value, int) or value >= 100:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.3g}"


def _first_to_last(values: Sequence[float]) -> str:
    return f"{number(values[0])} ... {number(values[-1])} ({len(values)} points)"
