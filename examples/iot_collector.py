"""An IoT collector: devices send readings, some of them late; a dashboard shows each minute.

Run it: `python examples/iot_collector.py`. The store is made in a directory that is removed again.
"""

from __future__ import annotations

import tempfile

import numpy as np

import stratalog

START = 1_700_000_040
DEVICES = [f"sensor-{number}" for number in range(5)]


def collect(store: stratalog.Store) -> None:
    """Ten minutes of readings: most by column, some as line protocol, and a few late ones."""
    rng = np.random.default_rng(7)
    climate = store.series("climate")
    climate.retention(downsample=[("1m", "avg", "365d")])
    for second in range(0, 600, 60):
        times = np.repeat(START + second + np.arange(0, 60, 10), len(DEVICES))
        devices = np.tile(DEVICES, 6)
        climate.write_many(
            times,
            {"celsius": 20 + rng.normal(0, 0.5, len(times)), "battery": np.full(len(times), 97)},
            tags={"device": devices},
        )
    store.write_lines(f"climate,device=sensor-9 celsius=35.5 {START + 301}", precision="s")
    # A device that had no connection for a while sends what it has gathered.
    late = START + np.arange(120, 180, 10)
    climate.write_many(late, {"celsius": np.full(6, 12.0)}, tags={"device": "sensor-8"})


def show(store: stratalog.Store) -> None:
    """The dashboard: a line for each minute, and the newest reading of each device."""
    store.compact()  # upkeep computes the minutes by itself; here is no time to wait for it
    minutes = store.series("climate").downsampled("1m")
    table = minutes.query(window="1m", aggregate="max", field="celsius")
    for start, value in zip(*(table[name].to_pylist() for name in table.column_names), strict=True):
        print(f"{start:%H:%M}  {value:5.1f} °C  {'#' * round(value)}")
    for latest in store.series("climate").latest():
        print(f"{latest.tags['device']}: {latest.fields['celsius']:.1f} °C")


def main() -> None:
    """Collect, then show."""
    with tempfile.TemporaryDirectory() as path, stratalog.open(path, durability="disk") as store:
        collect(store)
        show(store)


if __name__ == "__main__":
    main()
