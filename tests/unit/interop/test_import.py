"""Foreign directories brought into a store, and out of it again."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import OpenStore

import stratalog
from stratalog import Gap, Priority, Record
from stratalog.interop import export_directory, import_directory, read_directory
from stratalog.interop.topics.replay import frames
from stratalog.testing import ManualClock

FOREIGN = Path(__file__).parents[2] / "golden" / "foreign"


def expected_of(layout: str, case: str) -> Any:
    """Load what the program itself returned."""
    return json.loads((FOREIGN / layout / case / "expected.json").read_text())


def source(layout: str, case: str) -> Path:
    """The directory of a case."""
    data = FOREIGN / layout / case / "data"
    return data / "hot" if layout == "topics" else data


def cases(layout: str) -> list[str]:
    """Every directory there is of a layout."""
    return sorted(path.name for path in (FOREIGN / layout).iterdir())


def records(store: stratalog.Store, name: str) -> list[Record]:
    """The records of a topic, without gaps."""
    return [item for item in store.topic(name).read() if isinstance(item, Record)]


def drain(queue: stratalog.Queue) -> list[stratalog.Message]:
    """All messages, in the order they are delivered."""
    found = []
    while some := queue.get_many(1000):
        found += some
        queue.ack(*some)
    return found


# --- LedgerQ -----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", cases("ledgerq"))
def test_a_queue_of_ledgerq_goes_on_where_it_was(case: str, open_store: OpenStore) -> None:
    """Ids, values, headers and priorities; what was read is consumed, what failed comes again."""
    expected = expected_of("ledgerq", case)
    part = expected.get("queue", expected)
    with open_store() as store:
        report = import_directory("ledgerq", source("ledgerq", case), store, name="q")
        assert report.topics["q"] == len(part["records"])
    store = open_store()  # what was imported is durable
    queue = store.queue("q")
    values = {record["id"]: base64.b64decode(record["value_b64"]) for record in part["records"]}
    found = records(store, "q")
    assert all(record.value == values[record.offset] for record in found)
    gone = {item.first: item.reason for item in queue.topic.read() if isinstance(item, Gap)}
    assert {record.offset for record in found} | gone.keys() >= values.keys()
    reading = part.get("dequeue_from_saved_position")
    ids = (reading or expected["program"]["second_open"]["dequeue"])["ids"]
    retried = {
        one["id"]: one["retry_count"] for one in expected.get("retry_state", {}).get("entries", ())
    }
    messages = drain(queue)
    assert {message.offset for message in messages} == {*ids, *retried}
    assert {m.offset: m.delivery_count - 1 for m in messages if m.offset in retried} == retried
    urgency = [message.priority for message in messages]
    assert urgency == sorted(urgency)
    assert stratalog.verify(store.path).ok


def test_priorities_of_ledgerq_become_ours(open_store: OpenStore) -> None:
    """0, 1 and 2 are low, normal and high."""
    store = open_store()
    import_directory("ledgerq", source("ledgerq", "headers_ttl_priority"), store, name="q")
    levels = {0: Priority.LOW, 1: Priority.NORMAL, 2: Priority.HIGH}
    expected = expected_of("ledgerq", "headers_ttl_priority")["records"]
    wanted = {record["id"]: levels[record["priority"]] for record in expected}
    found = records(store, "q")
    assert {record.offset: record.priority for record in found} == {
        record.offset: wanted[record.offset] for record in found
    }


def test_dead_letters_of_ledgerq_can_be_put_back(open_store: OpenStore) -> None:
    """They have the headers of ours, beside their own."""
    store = open_store()
    report = import_directory("ledgerq", source("ledgerq", "dlq"), store, name="q")
    assert report.dead == 3
    queue = store.queue("q")
    letters = list(queue.dead.read())
    assert [letter.headers["dlq.original_offset"] for letter in letters] == [b"3", b"6", b"9"]
    assert letters[0].headers["dlq.reason"] == b"failure 3 of message 3"
    assert letters[0].headers["dlq.retry_count"] == b"3"
    drain(queue)
    assert len(queue.dead.requeue()) == 3
    assert drain(queue)[0].headers["origin"] == b"svc-3"


def test_deduplication_ids_of_ledgerq_still_count(open_store: OpenStore) -> None:
    """LedgerQ stores digests of ids: a put with the digest is recognised."""
    store = open_store()
    import_directory("ledgerq", source("ledgerq", "dedup"), store, name="q")
    known = expected_of("ledgerq", "dedup")["dedup_known_after_reopen"]
    digest = hashlib.sha256(known[0]["dedup_id"].encode()).hexdigest()
    assert store.queue("q").put(b"again", dedup_id=digest).duplicate
    assert not store.queue("q").put(b"new", dedup_id="another").duplicate


def test_a_torn_write_becomes_a_gap_here(open_store: OpenStore) -> None:
    """The message that is lost is named, and its id is not given to another."""
    store = open_store()
    report = import_directory("ledgerq", source("ledgerq", "torn_tail"), store, name="q")
    assert [problem.lost for problem in report.problems] == ["message 300"]
    assert list(store.topic("q").read(299))[1:] == [Gap(300, 300, "damaged")]
    assert store.queue("q").put(b"next").offset == 301


# --- FluxMQ ------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", cases("fluxmq"))
def test_queues_of_fluxmq_become_topics(case: str, open_store: OpenStore) -> None:
    """Offsets, times, keys, values and headers; what is unreadable is a gap."""
    expected = expected_of("fluxmq", case)
    store = open_store()
    import_directory("fluxmq", source("fluxmq", case), store)
    for name, queue in expected["queues"].items():
        decoded = [
            (
                record["offset"], record["timestamp_ms"] * 10**6,
                None if record["key_b64"] is None else base64.b64decode(record["key_b64"]),
                None if record["value_b64"] is None else base64.b64decode(record["value_b64"]),
                {key: base64.b64decode(value) for key, value in record["headers_b64"].items()},
            )
            for record in queue["records"]
        ]  # fmt: skip
        found = records(store, name)
        assert [
            (one.offset, one.timestamp, one.key, one.value, dict(one.headers)) for one in found
        ] == decoded
        assert store.topic(name).next_offset == queue["tail"]
    if case == "bit_flip":
        gaps = [item for item in store.topic("events").read() if isinstance(item, Gap)]
        assert gaps == [Gap(144, 155, "damaged")]


@pytest.mark.parametrize("case", ["group_compacted", "group_ops_uncompacted"])
def test_groups_of_fluxmq_go_on_where_they_were(case: str, open_store: OpenStore) -> None:
    """Pending records with their counts, and nothing of what was acknowledged."""
    expected = expected_of("fluxmq", case)
    with open_store() as store:
        report = import_directory("fluxmq", source("fluxmq", case), store)
        assert report.groups == ["audit/readers", "orders/workers"]
    store = open_store()
    low = expected["consumer_groups_low_level"]["orders/workers"]
    workers = store.topic("orders").group("workers")
    assert {one.offset: one.delivery_count for one in workers.pending()} == {
        one["offset"]: one["delivery_count"] for one in low["pending"]
    }
    left = {one["offset"] for one in low["pending"]} | set(range(low["cursor"], 60))
    assert workers.lag == len(left)
    assert {delivery.offset for delivery in workers.poll("me", limit=1000)} == left
    readers = store.topic("audit").group("readers")
    assert (readers.mode, readers.lag) == ("stream", 6)
    assert readers.poll("me")[0].offset == 4


# --- topics ------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", cases("topics"))
def test_topics_are_imported_without_what_was_deleted(case: str, open_store: OpenStore) -> None:
    """Numbers, JSON text, tags, nodes and meta; holes are no gaps."""
    expected = expected_of("topics", case)["topics"]
    store = open_store()
    cold = FOREIGN / "topics" / case / "data" / "cold"
    where = cold if cold.exists() else None
    import_directory("topics", source("topics", case), store, cold=where)
    for name, topic in expected.items():
        items = list(store.topic(name).read())
        assert [
            (
                one.offset, one.timestamp // 10**6, one.tag, one.node, json.loads(one.value or b""),
                json.loads(one.headers.get("meta", b"null")),
            )
            for one in items
            if isinstance(one, Record)
        ] == [
            (one["seq"], one["ts_ms"], one["tag"], one["node"], one["data"], one["meta"])
            for one in topic["records"]
            if not one["deleted"]
        ]  # fmt: skip
        assert not [item for item in items if isinstance(item, Gap)]
        after = topic["state_after_program_reopened_it"]
        assert store.topic(name).next_offset == after["next_seq"]


def test_leases_of_topics_are_held_here(open_store: OpenStore) -> None:
    """Jobs that a worker holds are pending; the one that was given back is delivered."""
    begun = 1794777300 * 10**9  # the leases are for a day from some seconds before
    store = open_store(clock=ManualClock(begun), background=False)
    import_directory("topics", source("topics", "queue_leases"), store)
    queue = store.queue("jobs")
    stats = queue.stats()
    assert (stats.waiting, stats.pending) == (23, 4)
    offsets = {message.offset for message in drain(queue)}
    assert offsets == {4, *range(9, 31)}


# --- all ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "case"),
    [(layout, case) for layout in ("ledgerq", "fluxmq", "topics") for case in cases(layout)],
)
def test_a_dry_run_changes_nothing_and_counts_the_same(
    layout: str, case: str, open_store: OpenStore
) -> None:
    """Records, problems and names, and no topic in the store."""
    store = open_store()
    planned = import_directory(layout, source(layout, case), store, dry_run=True)
    assert store.topics() == []
    report = import_directory(layout, source(layout, case), store)
    assert (planned.topics, planned.problems, planned.groups) == (
        report.topics, report.problems, report.groups,
    )  # fmt: skip


@pytest.mark.parametrize("layout", ["ledgerq", "fluxmq", "topics"])
def test_an_import_that_is_run_again_adds_nothing(layout: str, open_store: OpenStore) -> None:
    """Records that are there already are recognised."""
    case = {"ledgerq": "plain", "fluxmq": "s2", "topics": "shard2_killed"}[layout]
    store = open_store()
    first = import_directory(layout, source(layout, case), store, name="n")
    before = {name: records(store, name) for name in first.topics}
    again = import_directory(layout, source(layout, case), store, name="n")
    assert again.records == 0
    assert {name: records(store, name) for name in first.topics} == before


def test_an_import_that_was_cut_short_goes_on(open_store: OpenStore, tmp_path: Path) -> None:
    """Half of the segments first, as a crash would leave it, then all of them."""
    half = tmp_path / "half"
    half.mkdir()
    for path in sorted(source("ledgerq", "plain").glob("*1.*"))[:2]:
        (half / path.name).write_bytes(path.read_bytes())
    store = open_store()
    assert import_directory("ledgerq", half, store, name="q").records == 100
    report = import_directory("ledgerq", source("ledgerq", "plain"), store, name="q")
    assert report.records == 200
    assert [record.offset for record in records(store, "q")] == list(range(1, 301))


def test_other_records_of_that_name_are_not_touched(open_store: OpenStore) -> None:
    """The name is taken by something else: nothing is imported."""
    store = open_store()
    store.topic("events").append(b"mine")
    with pytest.raises(stratalog.TopicExistsError, match="holds other records"):
        import_directory("fluxmq", source("fluxmq", "none"), store)
    assert [record.value for record in records(store, "events")] == [b"mine"]


def test_an_unknown_layout_is_refused(open_store: OpenStore, tmp_path: Path) -> None:
    """With the names that are known."""
    with pytest.raises(stratalog.OptionError, match="fluxmq, ledgerq, topics"):
        import_directory("rabbitmq", tmp_path, open_store())
    with pytest.raises(stratalog.OptionError, match="use one of"):
        export_directory("x", open_store(tmp_path / "other"), None, tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["ledgerq", "fluxmq", "topics"])
def test_export_then_import_gives_the_same_store(
    layout: str, open_store: OpenStore, tmp_path: Path
) -> None:
    """Records with their offsets, and where consumers are."""
    case = {"ledgerq": "partly_consumed", "fluxmq": "group_compacted", "topics": "shard2_clean"}
    one, two = open_store(tmp_path / "one"), open_store(tmp_path / "two")
    first = import_directory(layout, source(layout, case[layout]), one)
    name = "data" if layout == "ledgerq" else None
    export_directory(layout, one, name, tmp_path / "out")
    second = import_directory(layout, tmp_path / "out", two, name=name)
    assert second.topics == first.topics
    assert second.problems == []
    for topic in first.topics:
        assert records(two, topic) == records(one, topic)
        assert two.topic(topic).next_offset == one.topic(topic).next_offset
    if layout == "ledgerq":
        assert len(two.queue("data")) == len(one.queue("data")) == 117
    if layout == "fluxmq":
        groups = [store.topic("orders").group("workers") for store in (one, two)]
        assert len({tuple((p.offset, p.delivery_count) for p in g.pending()) for g in groups}) == 1
        assert groups[0].lag == groups[1].lag


def test_a_store_goes_to_flo_and_comes_back(open_store: OpenStore, tmp_path: Path) -> None:
    """A stream and a queue share one numbering; what was consumed stays so."""
    store = open_store(tmp_path / "one")
    store.topic("events").append_many([b"a", b"b", b"c"])
    queue = store.queue("jobs")
    queue.put_many([b"x", b"y", b"z"])
    first, second = queue.get(), queue.get()
    queue.ack(first)
    queue.nack(second)
    export_directory("flo", store, None, tmp_path / "flo")
    other = open_store(tmp_path / "two")
    report = import_directory("flo", tmp_path / "flo", other)
    assert (report.topics, report.problems) == ({"events": 3, "jobs": 3}, [])
    assert [record.value for record in records(other, "events")] == [b"a", b"b", b"c"]
    messages = drain(other.queue("jobs"))
    assert {message.value: message.delivery_count for message in messages} == {b"y": 2, b"z": 1}
    export_directory("flo", other, "events", tmp_path / "again")
    third = open_store(tmp_path / "three")
    import_directory("flo", tmp_path / "again", third)
    assert records(third, "events") == records(other, "events")


def test_a_native_queue_is_exported_and_comes_back(open_store: OpenStore, tmp_path: Path) -> None:
    """Priorities, headers and what was consumed; ids are offsets plus one."""
    store = open_store(tmp_path / "one")
    queue = store.queue("jobs")
    queue.put(b"low", priority=Priority.LOW, headers={"h": b"v"})
    queue.put(b"high", priority=Priority.HIGH)
    queue.ack(queue.get())
    for layout in ("ledgerq", "topics"):
        export_directory(layout, store, "jobs", tmp_path / layout)
        other = open_store(tmp_path / f"{layout}-store")
        import_directory(
            layout, tmp_path / layout, other, name="jobs" if layout == "ledgerq" else None
        )
        messages = drain(other.queue("jobs"))
        if layout == "topics":
            assert [message.value for message in messages] == [b'"low"']
        else:
            assert [(m.offset, m.value) for m in messages] == [(1, b"low")]
            assert messages[0].headers["h"] == b"v"


def test_a_directory_that_is_not_empty_is_not_written_to(
    open_store: OpenStore, tmp_path: Path
) -> None:
    """Nothing of the user's is overwritten."""
    store = open_store(tmp_path / "one")
    store.queue("q").put(b"x")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "file").write_text("mine")
    with pytest.raises(stratalog.OptionError, match="is not empty"):
        export_directory("ledgerq", store, "q", tmp_path / "out")


def test_read_directory_gives_arrow(tmp_path: Path) -> None:
    """Batches by name, without a store."""
    foreign = read_directory("fluxmq", source("fluxmq", "zstd"))
    table = foreign.topics["events"].read_all()
    assert table.num_rows == 305
    assert foreign.queues == {}


def test_dead_letters_go_to_ledgerq_and_come_back(open_store: OpenStore, tmp_path: Path) -> None:
    """The export said that they were read already: the import then had none of them."""
    store = open_store(tmp_path / "one")
    queue = store.queue("q", max_deliveries=1)
    queue.put_many([b"m0", b"m1"])
    queue.nack(queue.get(0), reason="broken")
    export_directory("ledgerq", store, "q", tmp_path / "out")
    other = open_store(tmp_path / "two")
    report = import_directory("ledgerq", tmp_path / "out", other, name="q")
    assert report.dead == 1
    assert [letter.value for letter in other.queue("q").dead.read()] == [b"m0"]
    assert [message.value for message in drain(other.queue("q"))] == [b"m1"]


def test_dead_letters_have_the_headers_of_ledgerq_in_a_directory_beside(
    open_store: OpenStore, tmp_path: Path
) -> None:
    """LedgerQ refuses letters inside of its queue's directory, and looks for headers of its own."""
    store = open_store(tmp_path / "one")
    queue = store.queue("q", max_deliveries=1)
    queue.put_many([b"m0", b"m1"])
    queue.nack(queue.get(0), reason="broken\nin line 7")
    export_directory("ledgerq", store, "q", tmp_path / "out")
    assert not (tmp_path / "out" / "dlq").exists()
    letters = read_directory("ledgerq", tmp_path / "out-dlq")
    (row,) = letters.topics["out-dlq"].read_all().to_pylist()
    headers = {header["key"]: header["value"] for header in row["headers"]}
    assert headers["dlq.original_msg_id"] == headers["dlq.original_offset"] == b"1"
    # A queue keeps reasons without control characters, so that they fit on one line.
    assert headers["dlq.retry_count"] == b"1"
    assert headers["dlq.failure_reason"] == headers["dlq.reason"] == b"broken in line 7"
    shutil.rmtree(tmp_path / "out")
    with pytest.raises(stratalog.OptionError, match="out-dlq is not empty"):
        export_directory("ledgerq", store, "q", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_ids_that_count_go_to_ledgerq_and_come_back(open_store: OpenStore, tmp_path: Path) -> None:
    """As the digests that LedgerQ has; one that came from there stays what it is."""
    store = open_store(tmp_path / "one")
    store.queue("q").put(b"m", dedup_id="order-7")
    export_directory("ledgerq", store, "q", tmp_path / "out")
    other = open_store(tmp_path / "two")
    import_directory("ledgerq", tmp_path / "out", other, name="q")
    digest = hashlib.sha256(b"order-7").hexdigest()
    assert other.queue("q").put(b"m", dedup_id=digest).duplicate
    export_directory("ledgerq", other, "q", tmp_path / "again")
    states = [
        json.loads((tmp_path / name / ".dedup_state.json").read_text()) for name in ("out", "again")
    ]
    assert states[0]["entries"][0]["dedup_id"] == digest
    assert states[0] == states[1]


def test_a_hole_goes_to_ledgerq_as_messages_that_expired(
    open_store: OpenStore, tmp_path: Path
) -> None:
    """LedgerQ stops for good at an id that is missing, and skips what has expired."""
    store = open_store(tmp_path / "one")
    queue = store.queue("q")
    queue.put_many([b"m%d" % number for number in range(6)])
    store.topic("q").delete(offsets=[2, 3, 5])
    export_directory("ledgerq", store, "q", tmp_path / "out")
    assert (tmp_path / "out" / f"{1:020d}.log").read_bytes().count(bytes([1, 4])) >= 3
    other = open_store(tmp_path / "two")
    report = import_directory("ledgerq", tmp_path / "out", other, name="q")
    assert (report.records, report.problems) == (3, [])
    assert [(one.offset, one.value) for one in records(other, "q")] == [
        (1, b"m0"), (2, b"m1"), (5, b"m4"),
    ]  # fmt: skip
    assert other.topic("q").next_offset == 7


def test_a_hole_goes_to_fluxmq_as_records_that_expired(
    open_store: OpenStore, tmp_path: Path
) -> None:
    """FluxMQ never comes back from a read at an offset that no batch has."""
    store = open_store(tmp_path / "one")
    topic = store.topic("t")
    topic.append_many([b"m%d" % number for number in range(6)])
    topic.delete(offsets=[0, 2, 3, 5])
    assert export_directory("fluxmq", store, "t", tmp_path / "out").records == 2
    segment = tmp_path / "out" / "queues" / "t" / "segments" / f"{topic.earliest:020d}.seg"
    assert int.from_bytes(segment.read_bytes()[20:22], "little") == 6 - topic.earliest
    other = open_store(tmp_path / "two")
    report = import_directory("fluxmq", tmp_path / "out", other)
    assert (report.records, report.problems) == (2, [])
    assert [(one.offset, one.value) for one in records(other, "t")] == [(1, b"m1"), (4, b"m4")]
    assert other.topic("t").next_offset == 6


def test_a_hole_goes_to_topics_as_records_that_were_deleted(
    open_store: OpenStore, tmp_path: Path
) -> None:
    """The server ignores a frame whose number is not the next one, and so all that follow it."""
    store = open_store(tmp_path / "one")
    store.topic("t").append_many([b"%d" % number for number in range(8)])
    store.topic("t").delete(offsets=[0, 3, 4])
    export_directory("topics", store, "t", tmp_path / "out")
    (path,) = (tmp_path / "out" / "wal").iterdir()
    found = [frame for _, _, frame in frames(path.read_bytes(), 0)]
    assert [frame.seq for frame in found if frame.type == 1] == list(range(1, 9))
    other = open_store(tmp_path / "two")
    assert import_directory("topics", tmp_path / "out", other).records == 5
    assert [(one.offset, one.value) for one in records(other, "t")] == [
        (2, b"1"), (3, b"2"), (6, b"5"), (7, b"6"), (8, b"7"),
    ]  # fmt: skip


def test_an_empty_queue_goes_to_ledgerq_and_comes_back(
    open_store: OpenStore, tmp_path: Path
) -> None:
    """It is a directory of LedgerQ all the same."""
    store = open_store(tmp_path / "one")
    store.queue("q")
    export_directory("ledgerq", store, "q", tmp_path / "out")
    other = open_store(tmp_path / "two")
    assert import_directory("ledgerq", tmp_path / "out", other, name="q").records == 0
    assert len(other.queue("q")) == 0


def test_what_is_read_back_is_compared(open_store: OpenStore, tmp_path: Path) -> None:
    """A record that is gone before the import ends is an error, and not a success."""
    store = open_store(tmp_path / "data")

    def disturb(done: int, total: int, name: str) -> None:
        store.topic(name).delete(offsets=[7])

    with pytest.raises(stratalog.CorruptionError, match="305 records, and 304 are read back"):
        import_directory("fluxmq", source("fluxmq", "none"), store, progress=disturb)


def test_a_queue_that_was_there_keeps_its_position(open_store: OpenStore, tmp_path: Path) -> None:
    """Messages would have come into it, and the position of the original would have been lost."""
    store = open_store(tmp_path / "data")
    store.queue("q")
    with pytest.raises(stratalog.TopicExistsError, match="exists already"):
        import_directory("ledgerq", source("ledgerq", "partly_consumed"), store, name="q")
    assert store.topic("q").next_offset == 0


@pytest.mark.parametrize("case", ["group_compacted", "group_ops_uncompacted"])
def test_pending_records_of_fluxmq_have_their_consumers(case: str, open_store: OpenStore) -> None:
    """With counts and times; they are delivered again to whichever consumer asks first."""
    store = open_store()
    import_directory("fluxmq", source("fluxmq", case), store)
    expected = expected_of("fluxmq", case)["consumer_groups_low_level"]["orders/workers"]
    assert [
        (one.offset, one.consumer, one.delivery_count, one.delivered_at // 10**6)
        for one in store.topic("orders").group("workers").pending()
    ] == [
        (one["offset"], one["consumer"], one["delivery_count"], one["last_attempt_ms"])
        for one in expected["pending"]
    ]
