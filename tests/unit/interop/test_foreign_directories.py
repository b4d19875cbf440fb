"""Directories that the real programs wrote, read record for record.

Each case under `tests/golden/foreign` has the directory and, in `expected.json`, what the program
itself returned from it.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stratalog import Gap, Priority
from stratalog.errors import NotAStoreError
from stratalog.fs import PosixFileSystem
from stratalog.interop.fluxmq import read as fluxmq_read
from stratalog.interop.fluxmq.read import read as read_fluxmq
from stratalog.interop.ledgerq.read import read as read_ledgerq
from stratalog.interop.model import SCHEMA, Foreign, ForeignTopic
from stratalog.interop.topics.read import read as read_topics
from stratalog.interop.topics.write import encode_frame

FOREIGN = Path(__file__).parents[2] / "golden" / "foreign"
PRIORITIES = {0: Priority.LOW, 1: Priority.NORMAL, 2: Priority.HIGH}


def cases(layout: str) -> pytest.MarkDecorator:
    """Every directory there is of a layout."""
    names = sorted(path.name for path in (FOREIGN / layout).iterdir())
    assert names
    return pytest.mark.parametrize("case", names)


def expected_of(layout: str, case: str) -> Any:
    """Load what the program itself returned."""
    return json.loads((FOREIGN / layout / case / "expected.json").read_text())


def rows(topic: ForeignTopic) -> list[dict[str, Any]]:
    """All records, as dictionaries; times as nanoseconds."""
    table = pa.Table.from_batches(list(topic.batches()), SCHEMA)
    for name in ("timestamp", "expires_at"):
        at = table.schema.get_field_index(name)
        table = table.set_column(at, name, table.column(name).cast(pa.int64()))
    found: list[dict[str, Any]] = table.to_pylist()
    return found


def headers_of(row: dict[str, Any]) -> dict[str, bytes]:
    """The headers of a record as a mapping."""
    return {header["key"]: header["value"] for header in row["headers"] or []}


def encoded(value: bytes | None) -> str | None:
    """Bytes as `expected.json` has them."""
    return None if value is None else base64.b64encode(value).decode()


# --- LedgerQ -----------------------------------------------------------------------------------


def open_ledgerq(case: str) -> Foreign:
    """The directory of a case."""
    return read_ledgerq(PosixFileSystem(), str(FOREIGN / "ledgerq" / case / "data"), name="q")


@cases("ledgerq")
def test_messages_of_ledgerq_are_those_it_returns(case: str) -> None:
    """Ids, times, expiries, priorities, headers and values, of queues and dead letters."""
    expected = expected_of("ledgerq", case)
    foreign = open_ledgerq(case)
    for name, topic in foreign.contents.items():
        part = expected["dlq"] if name == "q.dead" else expected.get("queue", expected)
        assert [
            (
                row["offset"], row["timestamp"], row["expires_at"], row["priority"],
                {key: value.decode() for key, value in headers_of(row).items()},
                encoded(row["value"]), row["key"],
            )
            for row in rows(topic)
        ] == [
            (
                record["id"], record["timestamp_ns"], record["expires_at_ns"],
                PRIORITIES[record["priority"]], record["headers"], record["value_b64"], None,
            )
            for record in part["records"]
        ]  # fmt: skip


@cases("ledgerq")
def test_the_read_position_of_ledgerq_is_kept(case: str) -> None:
    """Next id and next id to read, as its statistics say after opening."""
    expected = expected_of("ledgerq", case)
    state = expected.get("queue", expected).get("state_on_open")
    if state is None:
        state = expected["program"]["second_open"]["state_on_open"]
    queue = open_ledgerq(case).contents["q"]
    assert (queue.end, queue.cursor) == (state["next_message_id"], state["read_message_id"])


def test_retries_and_dead_letters_of_ledgerq_come_along() -> None:
    """Failure counts with their reasons, and the queue of dead letters beside the queue."""
    expected = expected_of("ledgerq", "dlq")
    queue = open_ledgerq("dlq").contents["q"]
    assert queue.dead == "q.dead"
    assert [
        (one.offset, one.delivery_count, one.delivered_at, one.reason) for one in queue.pending
    ] == [
        (entry["id"], entry["retry_count"], entry["last_failure_ns"], entry["reason"])
        for entry in sorted(expected["retry_state"]["entries"], key=lambda entry: entry["id"])
    ]


def test_a_torn_write_of_ledgerq_is_reported_with_what_is_lost() -> None:
    """The torn entry is named by file and position; its message is a gap."""
    foreign = open_ledgerq("torn_tail")
    queue = foreign.contents["q"]
    assert len(rows(queue)) == 299
    assert queue.gaps == [Gap(300, 300, "damaged")]
    (problem,) = foreign.problems
    assert (problem.path, problem.lost) == ("00000000000000000201.log", "message 300")
    assert problem.position == 11944


# --- FluxMQ ------------------------------------------------------------------------------------


def open_fluxmq(case: str) -> Foreign:
    """The directory of a case."""
    return read_fluxmq(PosixFileSystem(), str(FOREIGN / "fluxmq" / case / "data"))


@cases("fluxmq")
def test_records_of_fluxmq_are_those_it_returns(case: str) -> None:
    """Offsets, times, keys, values and headers, whatever the compression."""
    expected = expected_of("fluxmq", case)["queues"]
    foreign = open_fluxmq(case)
    assert foreign.contents.keys() == expected.keys()
    for name, topic in foreign.contents.items():
        assert [
            (
                row["offset"], row["timestamp"], encoded(row["key"]), encoded(row["value"]),
                {key: encoded(value) for key, value in headers_of(row).items()},
            )
            for row in rows(topic)
        ] == [
            (
                record["offset"], record["timestamp_ms"] * 10**6, record["key_b64"],
                record["value_b64"], record["headers_b64"],
            )
            for record in expected[name]["records"]
        ]  # fmt: skip
        assert (topic.first, topic.end) == (expected[name]["head"], expected[name]["tail"])


@pytest.mark.parametrize("case", ["group_compacted", "group_ops_uncompacted"])
def test_groups_of_fluxmq_are_where_they_were(case: str) -> None:
    """Cursors and pending entries, from a snapshot and from a log of operations."""
    expected = expected_of("fluxmq", case)
    groups = {f"{group.topic}/{group.name}": group for group in open_fluxmq(case).groups}
    assert groups.keys() == expected["consumer_groups_api"].keys()
    workers, low = groups["orders/workers"], expected["consumer_groups_low_level"]["orders/workers"]
    assert (workers.mode, workers.cursor, workers.deliveries, workers.floor) == (
        "queue", low["cursor"], low["delivered"], low["ack_floor"],
    )  # fmt: skip
    assert [
        (one.offset, one.consumer, one.delivery_count, one.delivered_at) for one in workers.pending
    ] == [
        (one["offset"], one["consumer"], one["delivery_count"], one["last_attempt_ms"] * 10**6)
        for one in low["pending"]
    ]
    readers = groups["audit/readers"]
    assert (readers.mode, readers.cursor, readers.pending) == ("stream", 4, [])


def test_an_expiry_of_fluxmq_is_the_record_s() -> None:
    """The header stays, and its time is the record's own."""
    expected = expected_of("fluxmq", "group_compacted")["orders_messages_as_the_broker_sees_them"]
    orders = open_fluxmq("group_compacted").contents["orders"]
    found = {row["offset"]: row["expires_at"] for row in rows(orders)}
    assert found == {
        one["offset"]: one["expires_at_ms"] and one["expires_at_ms"] * 10**6 for one in expected
    }


def test_a_flipped_bit_in_fluxmq_is_a_gap() -> None:
    """The records of one batch are missing, and said to be."""
    expected = expected_of("fluxmq", "bit_flip")["unreadable"]
    foreign = open_fluxmq("bit_flip")
    topic = foreign.contents["events"]
    rows(topic)
    assert topic.gaps == [Gap(expected[0]["offset"], expected[-1]["offset"], "damaged")]
    (problem,) = foreign.problems
    assert problem.path == "queues/events/segments/00000000000000000108.seg"
    assert problem.lost == "records 144 to 155"


def test_a_torn_batch_of_fluxmq_is_named_by_its_records() -> None:
    """Its header is whole, and says which they were."""
    foreign = open_fluxmq("torn_tail")
    rows(foreign.contents["events"])
    (problem,) = foreign.problems
    assert (problem.position, problem.lost) == (0, "record 304")


def test_compressed_batches_are_read_in_pieces_that_fit_into_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Thousands of batches of a few bytes could each have a hundred megabytes of content."""
    whole = rows(open_fluxmq("s2").contents["events"])
    monkeypatch.setattr(fluxmq_read, "_CONTENT_BYTES", 1000)
    topic = open_fluxmq("s2").contents["events"]
    assert len(list(topic.batches())) > 20
    assert rows(topic) == whole
    assert topic.gaps == []


# --- topics ------------------------------------------------------------------------------------


def open_topics(case: str) -> Foreign:
    """The directory of a case, with its cold directory if there is one."""
    data = FOREIGN / "topics" / case / "data"
    cold = str(data / "cold") if (data / "cold").exists() else None
    return read_topics(PosixFileSystem(), str(data / "hot"), cold=cold)


@cases("topics")
def test_live_records_of_topics_are_those_it_returns(case: str) -> None:
    """Numbers, times, nodes, tags, data and meta, without what was deleted."""
    expected = expected_of("topics", case)["topics"]
    foreign = open_topics(case)
    assert foreign.contents.keys() == expected.keys()
    for name, topic in foreign.contents.items():
        assert [
            (
                row["offset"], row["timestamp"], row["node"], row["tag"], json.loads(row["value"]),
                json.loads(headers_of(row).get("meta", b"null")),
            )
            for row in rows(topic)
        ] == [
            (
                record["seq"], record["ts_ms"] * 10**6, record["node"], record["tag"],
                record["data"], record["meta"],
            )
            for record in expected[name]["records"]
            if not record["deleted"]
        ]  # fmt: skip
        state = expected[name]["state_after_program_reopened_it"]
        assert (topic.first, topic.end) == (state["earliest_seq"], state["next_seq"])


def test_leases_of_topics_are_kept() -> None:
    """Jobs that a worker holds, and one that was given back."""
    expected = expected_of("topics", "queue_leases")["leases_in_flight"]
    queue = open_topics("queue_leases").contents["jobs"]
    assert queue.kind == "queue"
    held = [one for one in queue.pending if one.consumer]
    assert [(one.offset, one.consumer, one.deadline, one.delivery_count) for one in held] == [
        (one["seq"], one["node"], one["deadline_ms"] * 10**6, one["deliveries"]) for one in expected
    ]
    assert [one.offset for one in queue.pending if not one.consumer] == [4]


def test_a_torn_log_of_topics_is_reported() -> None:
    """The torn frame was a delete: what it did is known by the segments."""
    (problem,) = open_topics("shard1_wal_torn").problems
    assert (problem.path, problem.position) == ("wal/wal-0000000000000001.log", 26107)


# --- what is none ------------------------------------------------------------------------------


@pytest.mark.parametrize("read", [read_ledgerq, read_fluxmq, read_topics])
def test_a_directory_of_something_else_is_refused(read: Any, tmp_path: Path) -> None:
    """An error says what was expected, and nothing is made up."""
    (tmp_path / "data.txt").write_text("hello")
    with pytest.raises(NotAStoreError, match="is not a directory of"):
        read(PosixFileSystem(), str(tmp_path))


@pytest.mark.parametrize(
    "frame",
    [
        encode_frame(1, 1, seq=1 << 63, timestamp=5, data=b'{"d":1}'),
        encode_frame(11, 1, data=((1 << 64) - 1).to_bytes(8, "little")),
    ],
    ids=["number", "reserved"],
)
def test_a_frame_of_topics_with_a_number_that_cannot_be_is_reported(
    frame: bytes, tmp_path: Path
) -> None:
    """Its checksum is right; the number did not fit into a column, and the reader broke off."""
    good = encode_frame(1, 1, seq=1, timestamp=5, data=b'{"d":7}')
    (tmp_path / "wal").mkdir()
    (tmp_path / "wal" / "wal-0000000000000001.log").write_bytes(good + frame)
    foreign = read_topics(PosixFileSystem(), str(tmp_path))
    assert [row["value"] for row in rows(foreign.contents["topic-1"])] == [b"7"]
    (problem,) = foreign.problems
    assert problem.position == len(good)


@pytest.mark.parametrize("time", [1 << 60, -1, (1 << 63) - 1])
def test_a_record_of_topics_with_a_time_that_cannot_be_is_kept(time: int, tmp_path: Path) -> None:
    """The record was lost; only its time is."""
    good = encode_frame(1, 1, seq=1, timestamp=5, data=b'{"d":7}')
    (tmp_path / "wal").mkdir()
    (tmp_path / "wal" / "wal-0000000000000001.log").write_bytes(
        good + encode_frame(1, 1, seq=2, timestamp=time, data=b'{"d":8}')
    )
    foreign = read_topics(PosixFileSystem(), str(tmp_path))
    found = [(row["value"], row["timestamp"]) for row in rows(foreign.contents["topic-1"])]
    assert found == [(b"7", 5 * 10**6), (b"8", 0)]
    (problem,) = foreign.problems
    assert (problem.position, problem.lost) == (len(good), "the time of record 2")
