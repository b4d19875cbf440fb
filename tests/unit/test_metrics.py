"""Metrics: they say what happened, and an append does not pay for them."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import stratalog
from stratalog import ClosedError
from stratalog.handles.measure import Sampler
from stratalog.metrics import Histogram, summarize


def test_percentiles_are_those_of_what_was_recorded() -> None:
    """To the width of a bucket, from nanoseconds to hours."""
    source = np.random.default_rng(7)
    for scale in (1e3, 1e6, 1e10):
        values = (source.lognormal(0.0, 1.5, 20_000) * scale).astype(np.int64)
        histogram = Histogram()
        for value in values.tolist():
            histogram.record(value)
            histogram.fold_if_full()
        summary = summarize([histogram])
        for name, share in (("p50", 50), ("p95", 95), ("p99", 99)):
            wanted = float(np.percentile(values, share)) / 1e9
            assert summary[name] == pytest.approx(wanted, rel=0.1)
        assert summary["count"] == len(values)
        assert summary["sum"] == pytest.approx(values.sum() / 1e9)
        assert summary["max"] == values.max() / 1e9


def test_a_histogram_of_nothing_and_of_extremes() -> None:
    """No division by zero, no bucket outside of the array."""
    assert summarize([]) == dict.fromkeys(("count", "sum", "max", "p50", "p95", "p99"), 0.0)
    histogram = Histogram()
    for value in (0, -5, 1 << 62):
        histogram.record(value)
    assert summarize([histogram])["count"] == 3


def test_nothing_recorded_by_threads_is_lost_or_counted_twice() -> None:
    """While summaries are made."""
    histogram = Histogram()

    def record() -> None:
        for _ in range(20_000):
            histogram.record(5)
            histogram.fold_if_full()

    threads = [threading.Thread(target=record) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        summarize([histogram])
    assert summarize([histogram])["count"] == 80_000


def test_a_store_says_what_it_did(tmp_path: Path) -> None:
    """Every counter, gauge and histogram that the page promises; it can be written as JSON."""
    with stratalog.open(tmp_path / "store", durability="disk") as store:
        orders = store.topic("orders")
        orders.append_many([b"x" * 100] * 500)
        store.topic("doomed").append_many([b"y"] * 7)
        store.drop_topic("doomed")
        jobs = store.queue("jobs")
        jobs.put_many([b"job"] * 64)
        for _ in range(64):
            jobs.ack(jobs.get_nowait())  # type: ignore[arg-type]
        assert store.route("orders", "copy").wait(30.0)
        store.checkpoint()
        assert len(list(orders.read())) == 500
        metrics = store.metrics()
        assert json.loads(json.dumps(metrics)) == metrics
        counters, gauges, times = (metrics[n] for n in ("counters", "gauges", "histograms"))
        assert counters["records_appended"] == 500 + 7 + 64 + 500
        assert counters["records_read"] >= 500
        assert counters["records_forwarded"] == 500
        assert counters["checkpoints"] == 1
        assert counters["log_bytes"] > 50_000
        assert counters["commits"] > 0
        assert (gauges["topics"], gauges["routes"], gauges["route_lag"]) == (3, 1, 0)
        assert gauges["memory_queues_bytes"] >= 0
        assert set(times) == {"append", "commit", "get", "checkpoint", "read"}
        assert times["get"]["count"] == 4
        for name in ("commit", "checkpoint", "read"):
            assert 0 < times[name]["p50"] <= times[name]["p95"] <= times[name]["p99"]
            assert times[name]["p99"] <= times[name]["max"] <= times[name]["sum"] + 1e-9
    with stratalog.open(tmp_path / "store") as store:
        assert store.metrics()["counters"]["records_appended"] == 0
    with pytest.raises(ClosedError):
        store.metrics()
    with stratalog.open(tmp_path / "store", read_only=True) as view:
        assert view.metrics()["gauges"]["records"] >= 1000


@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_single_appends_are_sampled(tmp_path: Path, durability: str) -> None:
    """A few of them, by the way that all others take; offsets and records are as without."""
    with stratalog.open(tmp_path / "store", durability=durability) as store:
        orders = store.topic("orders")
        sent = 0
        deadline = time.monotonic() + 30.0
        while store.metrics()["histograms"]["append"]["count"] < 3:
            assert time.monotonic() < deadline
            for _ in range(50):
                assert orders.append(b"%d" % sent) == sent
                sent += 1
        assert orders.read_values() == [b"%d" % n for n in range(sent)]


def test_a_sample_that_no_append_takes_is_taken_back(tmp_path: Path) -> None:
    """So that batches, which have a fast path too, have it again at once, and are asked less."""
    with stratalog.open(tmp_path / "store", durability="disk") as store:
        orders = store.topic("orders")
        sampler = Sampler({"orders": orders})
        sampler.tick()
        assert not orders.log.is_plain
        sampler._next_at = 0.0
        sampler.tick()
        assert orders.log.is_plain
        sampler._next_at = 0.0
        sampler.tick()
        assert orders.log.is_plain, "it was asked again at once"
        assert orders.append(b"x") == 0


def test_a_sample_does_not_bring_a_closed_or_dropped_topic_back(tmp_path: Path) -> None:
    """The append that would have taken it says what is wrong."""
    histogram = Histogram()
    with stratalog.open(tmp_path / "store", durability="disk") as store:
        gone, kept = store.topic("gone"), store.topic("kept")
        for topic in (gone, kept):
            topic.append(b"1")
            topic.stop_sample()
            assert topic.begin_sample(histogram)
        store.drop_topic("gone")
        with pytest.raises(stratalog.UnknownTopicError):
            gone.append(b"2")
    with pytest.raises(ClosedError):
        kept.append(b"2")
    assert not kept.log.is_plain
    assert not gone.log.is_plain


@pytest.mark.slow
def test_nothing_is_printed_by_default(tmp_path: Path) -> None:
    """Not even a warning about damage: the program says where messages go."""
    code = (
        "import stratalog, sys, logging\n"
        "logging.getLogger('stratalog.store').warning('hello')\n"
        "stratalog.open(sys.argv[1]).close()"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "store")], capture_output=True, check=True
    )
    assert (run.stdout, run.stderr) == (b"", b"")


def test_messages_have_names_and_fields(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Under `stratalog`, with what they speak of as attributes."""
    with (
        caplog.at_level(logging.DEBUG, "stratalog"),
        stratalog.open(tmp_path / "store") as store,
    ):
        store.topic("orders").append(b"x")
        store.checkpoint()
        store.drop_topic("orders")
    seen = {record.name for record in caplog.records}
    assert {"stratalog.store", "stratalog.upkeep"} <= seen
    assert all(getattr(record, "store", None) == store.path for record in caplog.records)
    made = next(record for record in caplog.records if "created" in record.getMessage())
    assert (made.topic, made.topic_kind) == ("orders", "topic")  # type: ignore[attr-defined]
