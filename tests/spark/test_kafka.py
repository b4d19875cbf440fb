"""`pipeline import kafka://...` from a real broker, which runs on loopback while these tests do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.spark.kafka_broker import (
    RECORD_BYTES_MAX,
    CommandLine,
    Producer,
    find_jars,
    run_broker,
)

import stratalog
from stratalog import Record

pytestmark = pytest.mark.xdist_group("kafka")

BEGIN = 1_700_000_000_000
HEADERS = [("a", b"1"), ("b", b"\xff"), ("c", b""), ("d", None), ("a", b"2")]


class Kafka:
    """A broker, a producer, and a command line that reads it."""

    def __init__(self, servers: str, producer: Producer, command: CommandLine) -> None:
        self.servers = servers
        self.producer = producer
        self._command = command

    def import_(self, store: Path, topic: str, *options: str) -> dict[str, Any]:
        """Import a topic of Kafka under its own name; returns the report."""
        source = f"kafka://{self.servers}/{topic}"
        code, printed = self.run("import", str(store), source, topic, "--json", *options)
        assert code == 0, printed
        report: dict[str, Any] = json.loads(printed)
        return report

    def run(self, *arguments: str) -> tuple[int, str]:
        """Run a job; returns its exit code and all that it printed."""
        return self._command.run("pipeline", *arguments)


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """A broker for all tests here."""
    jars = find_jars()
    command = CommandLine(jars)
    with run_broker(jars, tmp_path_factory.mktemp("kafka")) as servers:
        producer = Producer(jars, servers)
        yield Kafka(servers, producer, command)
        producer.close()
        command.close()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A new store, closed."""
    stratalog.open(tmp_path / "data", shards=1).close()
    return tmp_path / "data"


def records(path: Path, topic: str) -> list[Record]:
    """All records of a topic."""
    with stratalog.open(path, read_only=True) as store:
        found = list(store.topic(topic).read())
    assert all(isinstance(item, Record) for item in found)
    return [item for item in found if isinstance(item, Record)]


def test_records_of_kafka_come_with_keys_headers_times_and_tombstones(
    kafka: Kafka, store: Path
) -> None:
    """In order and once, however often it is run; what is new comes with the next run."""
    kafka.producer.create_topic("plain", 1)
    with kafka.producer.sending() as producer:
        send = kafka.producer.send
        send(producer, "plain", 0, b"k", b"v", BEGIN, HEADERS)
        send(producer, "plain", 0, None, b"no key", BEGIN + 1)
        send(producer, "plain", 0, b"k", None, BEGIN + 2)  # a tombstone
        send(producer, "plain", 0, b"", b"", BEGIN + 3)
        report = kafka.import_(store, "plain")
        assert (report["records"], report["bad"], report["format"]) == (4, 0, "kafka")
        assert kafka.import_(store, "plain")["records"] == 0
        send(producer, "plain", 0, b"new", b"later", BEGIN + 4)
    assert kafka.import_(store, "plain")["records"] == 1
    found = records(store, "plain")
    assert [(r.offset, r.key, r.value, r.timestamp // 10**6 - BEGIN) for r in found] == [
        (0, b"k", b"v", 0), (1, None, b"no key", 1), (2, b"k", None, 2), (3, b"", b"", 3),
        (4, b"new", b"later", 4),
    ]  # fmt: skip
    # Null is empty here, and the last of several of one name counts.
    assert dict(found[0].headers) == {"a": b"2", "b": b"\xff", "c": b"", "d": b""}
    assert all(not record.headers for record in found[1:])


def test_records_of_aborted_transactions_are_not_imported(kafka: Kafka, store: Path) -> None:
    """They were: Spark's source reads what is not committed, unless it is told otherwise.

    A transaction that is under way holds back what comes after it, too; that comes with the run
    after its commit.
    """
    kafka.producer.create_topic("atomic", 1)
    with kafka.producer.sending("one") as producer, kafka.producer.sending("two") as other:

        def send(through: Any, value: bytes) -> None:
            kafka.producer.send(through, "atomic", 0, b"k", value, BEGIN)

        for value, ending in ((b"kept", "commit"), (b"gone", "abort"), (b"kept too", "commit")):
            producer.beginTransaction()
            send(producer, value)
            getattr(producer, f"{ending}Transaction")()
        other.beginTransaction()
        send(other, b"under way")
        producer.beginTransaction()
        send(producer, b"after it")
        producer.commitTransaction()
        assert kafka.import_(store, "atomic")["records"] == 2
        other.commitTransaction()
    assert kafka.import_(store, "atomic")["records"] == 2
    assert [record.value for record in records(store, "atomic")] == [
        b"kept", b"kept too", b"under way", b"after it",
    ]  # fmt: skip


def test_partitions_are_merged_by_time_and_each_keeps_its_order(kafka: Kafka, store: Path) -> None:
    """The second partition came after the first, and all of its records had the newest time.

    Times of producers may go back within a partition: its order is Kafka's all the same.
    """
    kafka.producer.create_topic("wide", 2)
    times = {0: [0, 10, 20, 30, 40], 1: [5, 15, 12, 25, 35]}
    with kafka.producer.sending() as producer:
        for partition, deltas in times.items():
            for number, delta in enumerate(deltas):
                value = f"{partition}.{number}".encode()
                kafka.producer.send(producer, "wide", partition, None, value, BEGIN + delta)
    options = ("--header", "partition", "--header", "offset")
    assert kafka.import_(store, "wide", *options)["records"] == 10
    found = records(store, "wide")
    assert [record.value for record in found] == [
        b"0.0", b"1.0", b"0.1", b"1.1", b"1.2", b"0.2", b"1.3", b"0.3", b"1.4", b"0.4",
    ]  # fmt: skip
    assert [record.timestamp // 10**6 - BEGIN for record in found] == [
        0, 5, 10, 15, 15, 20, 25, 30, 35, 40,
    ]  # fmt: skip
    for record in found:
        places = (record.headers["kafka.partition"], record.headers["kafka.offset"])
        assert b".".join(places) == record.value


def test_an_import_of_kafka_begins_and_ends_where_it_is_told(kafka: Kafka, store: Path) -> None:
    """Options are those of Spark's source; a small batch at a time gives the same."""
    kafka.producer.create_topic("long", 1)
    with kafka.producer.sending() as producer:
        for number in range(30):
            value = str(number).encode()
            kafka.producer.send(producer, "long", 0, None, value, BEGIN + number)
    offsets = '{"long": {"0": 10}}'
    options = ("--option", f"startingOffsets={offsets}", "--option", "maxOffsetsPerTrigger=7")
    report = kafka.import_(store, "long", *options)
    assert (report["records"], report["batches"]) == (20, 3)
    assert [int(record.value or b"") for record in records(store, "long")] == list(range(10, 30))


def test_a_record_of_kafka_that_is_too_large_is_bad(kafka: Kafka, store: Path) -> None:
    """It is refused, or set aside with the place that Kafka has it in."""
    kafka.producer.create_topic("large", 1)
    with kafka.producer.sending() as producer:
        kafka.producer.send(producer, "large", 0, None, b"x" * RECORD_BYTES_MAX, BEGIN)
        kafka.producer.send(producer, "large", 0, None, b"small", BEGIN, [("h", b"v")])
        kafka.producer.send(
            producer, "large", 0, None, b"x" * RECORD_BYTES_MAX, BEGIN, [("h", b"")]
        )
    source = f"kafka://{kafka.servers}/large"
    code, printed = kafka.run("import", str(store), source, "large")
    assert (code, "1 too large" in printed) == (2, True), printed
    assert kafka.import_(store, "large", "--bad-rows", "aside")["bad_reasons"] == {"too large": 1}
    assert [len(record.value or b"") for record in records(store, "large")] == [RECORD_BYTES_MAX, 5]
    (aside,) = records(store, "large.bad")
    assert aside.headers["file"] == b"large/0/2"


def test_what_cannot_be_imported_from_kafka_is_said(kafka: Kafka, store: Path) -> None:
    """No such topic, a column that a record has by itself, a place that Kafka does not have."""
    source = f"kafka://{kafka.servers}/nosuch"
    code, printed = kafka.run("import", str(store), source, "x")
    assert (code, "nosuch" in printed) == (2, True), printed
    code, printed = kafka.run("import", str(store), source, "x", "--key", "id")
    assert (code, "has its own" in printed) == (2, True), printed
    code, printed = kafka.run("import", str(store), source, "x", "--header", "id")
    assert (code, "partition" in printed) == (2, True), printed
    code, printed = kafka.run("import", str(store), "kafka://127.0.0.1:1/x", "x")
    assert (code, "no broker of Kafka answers" in printed) == (2, True), printed
    with stratalog.open(store) as opened:
        assert opened.topics() == []
