"""A collector of 1,000 devices that report late: points count when they were measured."""

import tempfile
from datetime import UTC, datetime, timedelta

import numpy as np

import stratalog

NOON = datetime(2026, 11, 18, 12, tzinfo=UTC)
DEVICES = [f"device-{number:04}" for number in range(1000)]


def report(store: stratalog.Store, devices: list[str], minute: int) -> None:
    """Write the readings of one minute for many devices at once, by column."""
    taken = (NOON + timedelta(minutes=minute)).timestamp()
    readings = 20.0 + np.sin(np.arange(len(devices))) + minute / 10
    store.series("climate").write_many(
        [taken] * len(devices), {"celsius": readings}, tags={"device": devices}
    )


with tempfile.TemporaryDirectory() as directory, stratalog.open(directory) as store:
    climate = store.series("climate")
    climate.retention(raw="30d", downsample=[("5m", "avg", "365d")])

    # Most devices report every minute; those in the cellar get through an hour later, all at once.
    cellar, others = DEVICES[:50], DEVICES[50:]
    for minute in range(60):
        report(store, others, minute)
    for minute in reversed(range(60)):
        report(store, cellar, minute)

    # A late point is in the window in which it was measured.
    hour = climate.query(
        NOON, NOON + timedelta(hours=1), window="15m", aggregate="count", field="celsius"
    )
    print(hour)
    assert hour["value"].to_pylist() == [15 * len(DEVICES)] * 4

    # One device, as NumPy arrays, in the order of measurement.
    times, values = climate.read(
        NOON, NOON + timedelta(hours=1), tags={"device": cellar[0]}, field="celsius"
    )
    assert len(times) == 60
    assert bool((np.diff(times) > 0).all())

    # What each one said last, whenever that arrived.
    newest = climate.latest()
    assert len(newest) == len(DEVICES)
    print(newest[0].tags, newest[0].fields, f"{values.mean():.2f} on average")
