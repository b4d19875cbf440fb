"""The report: its numbers are those of the records, and its page needs nothing else."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.conftest import OpenStore

from stratalog.errors import NotAStoreError, UnknownTopicError
from stratalog.model import Record
from stratalog.spark import jobs
from stratalog.spark.jobs.outline import StoreReport

SECOND = 10**9
START = 1_700_000_000 * SECOND


def _fill(store: Any) -> list[Record]:
    """A topic in segments and in the log, some of it deleted; one that was evicted; an empty one.

    Returns what can be read of the first.
    """
    orders = store.create_topic("orders", segment_records=700, compression="zstd")
    records = [
        Record(
            value=b"x" * (n % 300),
            key=None if n % 10 == 0 else b"user %d" % (n % 97 if n % 3 else 5),
            headers={"sent": b"%d" % (1_700_000_000_000 + n * 1000 - n % 50)},
            timestamp=START + n * SECOND,
        )
        for n in range(3000)
    ]
    for start in range(0, 2500, 100):
        orders.append_many(records[start : start + 100])
    store.checkpoint()
    for record in records[2500:]:
        orders.append_many([record])
    orders.delete(offsets=[5, 6, 7, 700])
    limited = store.create_topic("limited", segment_records=10, retention_records=20)
    limited.append_many([b"\xff\x00"] * 95)
    store.compact()
    orders.delete(offsets=[2999])
    store.create_topic("empty")
    return [record for n, record in enumerate(records) if n not in {5, 6, 7, 700, 2999}]


def test_numbers_are_those_of_the_records(spark: Any, open_store: OpenStore) -> None:
    """Beside a live writer, of segments and log alike."""
    store = open_store(shards=1)
    living = _fill(store)
    found = jobs.report(store.path, spark=spark, time_header="sent")
    assert [topic.name for topic in found.topics] == ["empty", "limited", "orders"]
    empty, limited, orders = found.topics
    assert (empty.records, empty.spans, empty.keys.top) == (0, [], [])
    assert (limited.earliest, limited.next_offset) == (70, 95)
    assert [(gap.first, gap.last, gap.reason) for gap in limited.gaps] == [(0, 69, "evicted")]
    assert orders.records == len(living)
    assert orders.deleted == 5
    assert orders.dead == 1  # the others went when the store was compacted
    assert orders.gaps == []
    assert orders.value_bytes == sum(len(record.value or b"") for record in living)
    assert orders.size_max == 299
    assert orders.ratio > 2
    assert sum(span.records for span in orders.spans) == len(living)
    assert orders.span_seconds == 30
    assert orders.spans[1].records == 30
    assert (orders.oldest, orders.newest) == (START, START + 2998 * SECOND)
    assert orders.interval.count == len(living) - 1
    assert orders.interval.longest == 4 * SECOND
    assert orders.delay.count == len(living)
    assert orders.delay.longest == 49 * 10**6
    counts = Counter(record.key for record in living if record.key is not None)
    assert orders.keys.records == sum(counts.values())
    assert orders.keys.distinct == len(counts)
    expected = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:20]
    assert [(key.key.encode(), key.records) for key in orders.keys.top] == expected
    assert msgspec.json.decode(msgspec.json.encode(found), type=StoreReport) == found


def test_groups_tell_how_far_they_are_behind(
    spark: Any, open_store: OpenStore, tmp_path: Path
) -> None:
    """Consumer groups of both modes, and a queue."""
    store = open_store(shards=1)
    orders = store.topic("orders")
    times = [START + n * SECOND for n in range(10)]
    orders.append_many([Record(value=b"x", timestamp=time) for time in times])
    billing = orders.group("billing", mode="queue", start="earliest")
    held = billing.poll("worker", limit=4)
    billing.ack([one.offset for one in held[:3]])
    orders.group("audit", mode="stream", start="earliest")
    jobs_queue = store.queue("jobs")
    jobs_queue.put(b"work")
    output = tmp_path / "page.html"
    found = jobs.report(store.path, spark=spark, output=output)
    by_name = {topic.name: topic for topic in found.topics}
    groups = {group.name: group for group in by_name["orders"].groups}
    assert (groups["billing"].lag, groups["billing"].pending, groups["billing"].floor) == (7, 1, 3)
    assert groups["billing"].seconds == 6
    assert (groups["audit"].mode, groups["audit"].lag, groups["audit"].seconds) == ("stream", 10, 9)
    assert [(group.name, group.lag) for group in by_name["jobs"].groups] == [("", 1)]
    assert "billing" in output.read_text()


def test_tables_and_series_are_told_apart(spark: Any, open_store: OpenStore) -> None:
    """A table by its living keys, a series by its sets of tags and its points."""
    store = open_store()
    users = store.table("users")
    users.put_many({"ada": b"1", "bob": b"2", "eve": b"3"})
    users.put("ada", b"4")
    users.delete("bob")
    cpu = store.series("cpu")
    cpu.write_many([1, 2, 3, 4], {"user": [1.0, 2.0, 3.0, 4.0]}, tags={"host": list("aabb")})
    found = {topic.name: topic for topic in jobs.report(store.path, spark=spark).topics}
    assert (found["users"].kind, found["users"].living, found["users"].points) == ("table", 2, None)
    assert (found["cpu"].kind, found["cpu"].series, found["cpu"].points) == ("series", 2, 4)
    assert found["cpu"].living is None


def test_topics_are_chosen(spark: Any, open_store: OpenStore) -> None:
    """By name and pattern; what is not there is an error."""
    store = open_store(shards=1)
    _fill(store)
    found = jobs.report(store.path, spark=spark, topics="o*,empty")
    assert [topic.name for topic in found.topics] == ["empty", "orders"]
    with pytest.raises(UnknownTopicError):
        jobs.report(store.path, spark=spark, topics="nothing")
    with pytest.raises(NotAStoreError):
        jobs.report(f"{store.path}-not", spark=spark)


class _Page(HTMLParser):
    """Sees that tags are closed, and gathers what a browser would load."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "line", "rect"):
            self.open.append(tag)
        if tag == "rect":
            self.open.append(tag)
        self.loads += [v or "" for k, v in attrs if k in ("src", "href") and "#t" not in (v or "")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_stands_alone(spark: Any, open_store: OpenStore, tmp_path: Path) -> None:
    """Whole, with a chart of everything, and nothing to load; names cannot break out of it."""
    store = open_store(shards=1)
    _fill(store)
    store.create_topic("<script>alert('x')</script>").append(b"x", key=b"<b>&")
    output = tmp_path / "reports" / "page.html"
    jobs.report(store.path, spark=spark, time_header="sent", output=output)
    html = output.read_text()
    page = _Page()
    page.feed(html)
    assert page.open == []
    assert page.loads == []
    assert "<script" not in html
    assert not re.search(r"url\(|@import", html)
    for text in ("Records per", "Time between appends", "Latency", "Size of values", "<b>&"):
        assert text in page.text
    assert "Missing offsets: 0 to 69 (evicted)" in page.text
    assert "prefers-color-scheme: dark" in html
