"""Series: points in by column and by line, windows and newest points out, beside two databases."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import stratalog
from benchmarks.own import LOG_ALONE

SERIES = 100
WINDOW_SECONDS = 300
START = 1_700_000_000
LINES = 100_000
WRITE_POINTS = 100_000
"""Points of one write."""
SQLITE_SHARE = 10
"""sqlite3 has this part of the points: it takes seconds for a million."""


def series(points: int, rounds: int, directory: str) -> dict[str, Any]:
    """Write points of 100 series, then ask each contestant for the same windows, in turns."""
    facts: dict[str, Any] = {
        "points": points,
        "series": SERIES,
        "sqlite_points": points // SQLITE_SHARE,
    }
    numbers = np.arange(points)
    times, hosts = START + numbers // SERIES, numbers % SERIES
    values = np.random.default_rng(7).random(points)
    with stratalog.open(os.path.join(directory, "own"), durability="disk", **LOG_ALONE) as store:
        cpu = store.series("cpu")
        facts["write_points_per_second"] = _write(cpu, times, hosts, values)
        asked = {
            "stratalog": _own(cpu),
            "duckdb": _duckdb(times, hosts, values),
            "sqlite3": _sqlite(directory, times, hosts, values),
        }
        found = {name: ask("avg") for name, ask in asked.items()}
        assert np.allclose(found["stratalog"], found["duckdb"])
        for aggregate in ("avg", "p95"):
            for name, ask in asked.items():
                if name != "sqlite3" or aggregate == "avg":  # which has no percentiles
                    facts[f"{aggregate}_seconds_{name}"] = _best(partial(ask, aggregate), rounds)
        facts["latest_us"] = (
            _best(lambda: [cpu.latest({"host": "7"}) for _ in range(1000)], 9) * 1e3
        )
        for shape in ("alike", "mixed"):
            text = _lines(shape)
            seconds = _best(partial(store.write_lines, text, precision="ms"), rounds)
            facts[f"lines_per_second_{shape}"] = LINES / seconds
    return facts


def _best(action: Callable[[], Any], rounds: int) -> float:
    """Return the seconds of the best round: what else the machine does comes on top of it."""
    taken = []
    for _ in range(rounds):
        begin = time.perf_counter()
        action()
        taken.append(time.perf_counter() - begin)
    return min(taken)


def _write(cpu: stratalog.Series, times: Any, hosts: Any, values: Any) -> float:
    names = np.array([str(host) for host in range(SERIES)])
    taken = []
    for start in range(0, len(times), WRITE_POINTS):
        part = slice(start, start + WRITE_POINTS)
        tags = {"host": names[hosts[part]]}
        begin = time.perf_counter()
        cpu.write_many(times[part], {"user": values[part]}, tags=tags)
        taken.append((time.perf_counter() - begin) / len(times[part]))
    return 1 / float(np.median(taken))


def _own(cpu: stratalog.Series) -> Callable[[str], Any]:
    def ask(aggregate: str) -> Any:
        return cpu.query(window=WINDOW_SECONDS, aggregate=aggregate)["value"].to_numpy()

    return ask


def _duckdb(times: Any, hosts: Any, values: Any) -> Callable[[str], Any]:
    import duckdb
    import pyarrow as pa

    database = duckdb.connect()
    database.register("points", pa.table({"time": times, "host": hosts, "value": values}))
    database.execute("CREATE TABLE cpu AS SELECT * FROM points")

    def ask(aggregate: str) -> Any:
        how = "avg(value)" if aggregate == "avg" else "quantile_cont(value, 0.95)"
        query = f"SELECT {how} FROM cpu GROUP BY time // {WINDOW_SECONDS} ORDER BY min(time)"
        return database.execute(query).fetchnumpy().popitem()[1]

    return ask


def _sqlite(directory: str, times: Any, hosts: Any, values: Any) -> Callable[[str], Any]:
    database = sqlite3.connect(os.path.join(directory, "points.db"), isolation_level=None)
    database.execute("PRAGMA synchronous=OFF")
    database.execute("CREATE TABLE cpu (time INTEGER, host INTEGER, value REAL)")
    database.execute("CREATE INDEX cpu_time ON cpu (time)")
    count = len(times) // SQLITE_SHARE
    columns = (times[:count].tolist(), hosts[:count].tolist(), values[:count].tolist())
    database.execute("BEGIN")
    database.executemany("INSERT INTO cpu VALUES (?, ?, ?)", zip(*columns, strict=True))
    database.execute("COMMIT")

    def ask(aggregate: str) -> Any:
        query = f"SELECT {aggregate}(value) FROM cpu GROUP BY time / {WINDOW_SECONDS}"
        return database.execute(query).fetchall()

    return ask


def _lines(shape: str) -> bytes:
    """Lines of two fields; every third of the mixed ones has escapes, an int and a text."""
    values = np.random.default_rng(9).random(LINES).round(4).tolist()
    lines = []
    for number, value in enumerate(values):
        stamp = START * 1000 + number
        if shape == "mixed" and not number % 3:
            lines.append(f'disk\\ io,host={number % 10} free={number}i,name="x" {stamp}\n')
        else:
            lines.append(f"cpu,host={number % SERIES} user={value},system={value} {stamp}\n")
    return "".join(lines).encode()
