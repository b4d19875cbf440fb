"""Foreign directories with numbers that cannot be, and with damage in each kind of file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

import stratalog
from stratalog.errors import CorruptionError
from stratalog.interop import export_directory, import_directory, read_directory
from stratalog.interop.fluxmq import format as fluxmq
from stratalog.interop.fluxmq.write import _Row as Row
from stratalog.interop.fluxmq.write import encode_batch
from stratalog.interop.ledgerq import format as ledgerq

FLUXMQ = Path(__file__).parents[2] / "golden" / "foreign" / "fluxmq"
HUGE = 10**12


def fluxmq_queue(root: Path, *batches: bytes, first: int = 0) -> Path:
    """A directory of one queue with one segment."""
    directory = root / "queues" / "q" / "segments"
    directory.mkdir(parents=True)
    (directory / f"{first:020d}.seg").write_bytes(b"".join(batches))
    return root


def batch_at(offset: int, **fields: int) -> bytes:
    """A batch of one record; fields of its header changed, and its checksum right."""
    data = encode_batch([Row(offset, 10**12, None, b"v", [])])
    names = [
        "magic", "checksum", "base_offset", "length", "count", "flags", "compression", "version",
        "unused", "base_timestamp", "max_timestamp",
    ]  # fmt: skip
    values = dict(zip(names, fluxmq.BATCH.unpack_from(data), strict=True)) | fields
    head = fluxmq.BATCH.pack(*values.values())
    body = head[8:] + data[fluxmq.BATCH_BYTES :]
    return head[:4] + crc32c(body).to_bytes(4, "little") + body


@pytest.mark.parametrize(
    "fields",
    [
        {"base_offset": (1 << 64) - 1},
        {"base_offset": 1 << 63},
    ],
    ids=["offset", "sign"],
)
def test_numbers_of_fluxmq_that_cannot_be_are_reported(
    fields: dict[str, int], tmp_path: Path
) -> None:
    """The batches before and after are imported."""
    theirs = fluxmq_queue(tmp_path / "theirs", batch_at(0), batch_at(1, **fields), batch_at(2))
    with stratalog.open(tmp_path / "store") as store:
        report = import_directory("fluxmq", theirs, store)
        offsets = [one["offset"] for one in _table(store, "q")]
    assert offsets == [0, 2]
    (problem,) = report.problems
    assert (problem.position, problem.lost) == (len(batch_at(0)), "record 1")


IMPOSSIBLE_MS = [(1 << 63) - 1, -(1 << 63), 1 << 50, -1]
"""Times of FluxMQ that are beyond what can be, in milliseconds: the third is in nanoseconds."""


@pytest.mark.parametrize("time", IMPOSSIBLE_MS)
def test_records_of_fluxmq_with_a_time_that_cannot_be_are_kept(time: int, tmp_path: Path) -> None:
    """The whole batch was lost; only its times are, and they become that of the record before."""
    theirs = fluxmq_queue(
        tmp_path / "theirs", batch_at(0), batch_at(1, base_timestamp=time), batch_at(2)
    )
    with stratalog.open(tmp_path / "store") as store:
        report = import_directory("fluxmq", theirs, store)
        records = list(store.topic("q").records())
    assert [(one.offset, one.value, one.timestamp) for one in records] == [
        (offset, b"v", 10**18) for offset in range(3)
    ]
    problem = report.problems[0]
    assert (problem.position, problem.lost) == (len(batch_at(0)), "the time of record 1")


@pytest.mark.parametrize("lanes", [1, 50], ids=["one by one", "in lockstep"])
@pytest.mark.parametrize("time", [(1 << 62) + 10**12, -(1 << 62), 1 << 50, -1])
def test_a_time_of_fluxmq_that_cannot_be_costs_no_other_record(
    lanes: int, time: int, tmp_path: Path
) -> None:
    """Only one record of each batch has such a time, whose delta takes up to ten bytes."""
    good = 10**12
    stamps = [good, time, good + 1, time]
    batches = [
        encode_batch(
            [Row(4 * lane + at, stamp, b"k", b"v%d" % at, []) for at, stamp in enumerate(stamps)]
        )
        for lane in range(lanes)
    ]
    foreign = read_directory("fluxmq", fluxmq_queue(tmp_path / "theirs", *batches))
    table = foreign.topics["q"].read_all()
    assert table.column("offset").to_pylist() == list(range(4 * lanes))
    assert table.column("value").to_pylist() == [b"v0", b"v1", b"v2", b"v3"] * lanes
    milliseconds = [stamp // 10**6 for stamp in table.column("timestamp").cast("int64").to_pylist()]
    assert milliseconds == [good, 0, good + 1, 0] * lanes
    lost = [problem.lost for problem in foreign.problems]
    assert lost == [
        f"the times of 2 records from {4 * at + 1} to {4 * at + 3}" for at in range(lanes)
    ]


def test_a_hole_that_no_directory_has_is_an_error(tmp_path: Path) -> None:
    """An offset that jumps by a million million would take a set of that many."""
    theirs = fluxmq_queue(tmp_path / "theirs", batch_at(0), batch_at(HUGE))
    with (
        stratalog.open(tmp_path / "store") as store,
        pytest.raises(CorruptionError, match="so large a hole"),
    ):
        import_directory("fluxmq", theirs, store)


def test_a_queue_of_fluxmq_that_begins_at_a_huge_offset_is_imported(tmp_path: Path) -> None:
    """It takes neither time nor memory by the offset, and is there after the store is reopened."""
    theirs = fluxmq_queue(tmp_path / "theirs", batch_at(HUGE), batch_at(HUGE + 1), first=HUGE)
    consumers = theirs / "queues" / "q" / "consumers" / "g"
    consumers.mkdir(parents=True)
    lines = [
        {"t": fluxmq.DELIVER, "o": HUGE, "c": "one", "ts": 1},
        {"t": fluxmq.ACK, "o": HUGE, "c": "one", "ts": 2},
    ]
    (consumers / "ops.log").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with stratalog.open(tmp_path / "store") as store:
        assert import_directory("fluxmq", theirs, store).records == 2
        assert import_directory("fluxmq", theirs, store).records == 0
    with stratalog.open(tmp_path / "store") as store:
        topic = store.topic("q")
        assert (topic.earliest, topic.next_offset) == (HUGE, HUGE + 2)
        assert [record.offset for record in topic.records()] == [HUGE, HUGE + 1]
        topic.append(b"next")
        assert topic.next_offset == HUGE + 3


def ledgerq_queue(root: Path, store: stratalog.Store) -> Path:
    """A directory of LedgerQ with three messages."""
    queue = store.queue("jobs")
    for text in (b"one", b"two", b"three"):
        queue.put(text)
    export_directory("ledgerq", store, "jobs", root)
    return root


def change_entry(path: Path, number: int, place: int, value: int) -> None:
    """Change a field of an entry, and make its checksum right again."""
    data = bytearray(path.read_bytes())
    position = ledgerq.HEADER_BYTES
    for _ in range(number):
        position += int.from_bytes(data[position : position + 4], "little") + ledgerq.PADDING_BYTES
    fields = list(ledgerq.ENTRY.unpack_from(data, position))
    fields[place] = value
    ledgerq.ENTRY.pack_into(data, position, *fields)
    end = position + fields[0] - 4
    data[end : end + 4] = crc32c(bytes(data[position:end])).to_bytes(4, "little")
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("place", "value"),
    [(3, (1 << 64) - 1), (3, 1 << 63)],
    ids=["id", "sign"],
)
@pytest.mark.parametrize("number", [0, 1, 2])
def test_numbers_of_ledgerq_that_cannot_be_are_reported(
    number: int, place: int, value: int, tmp_path: Path
) -> None:
    """One message is lost, and the others are imported."""
    with stratalog.open(tmp_path / "store") as store:
        theirs = ledgerq_queue(tmp_path / "theirs", store)
        (segment,) = theirs.glob("*.log")
        change_entry(segment, number, place, value)
        report = import_directory("ledgerq", theirs, store, name="again")
        assert report.records == 2
        whats = [problem.what for problem in report.problems]
        assert "An entry has a number that cannot be." in whats


@pytest.mark.parametrize("time", [-1, -(1 << 63), (1 << 63) - 1])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_messages_of_ledgerq_with_a_time_that_cannot_be_are_kept(
    number: int, time: int, tmp_path: Path
) -> None:
    """The message was lost; only its time is."""
    with stratalog.open(tmp_path / "store") as store:
        theirs = ledgerq_queue(tmp_path / "theirs", store)
        (segment,) = theirs.glob("*.log")
        change_entry(segment, number, 4, time)
        report = import_directory("ledgerq", theirs, store, name="again")
        assert report.records == 3
        queue = store.queue("again")
        values = [message.value for message in queue.get_many(9, timeout=0)]
        assert values == [b"one", b"two", b"three"]
    problem = report.problems[0]
    assert problem.what == "An entry has a time that cannot be."
    assert problem.lost == f"the time of message {number + 1}"


@pytest.mark.parametrize(("expiry", "left"), [(0, 2), (-5, 2), ((1 << 63) - 1, 3)])
def test_an_expiry_of_ledgerq_that_cannot_be_is_the_nearest_that_can(
    expiry: int, left: int, tmp_path: Path
) -> None:
    """LedgerQ does not deliver what expires before 1970, and delivers what expires in 2262."""
    with stratalog.open(tmp_path / "store") as store:
        queue = store.queue("jobs")
        for text in (b"one", b"two", b"three"):
            queue.put(text, ttl=1e6)
        theirs = tmp_path / "theirs"
        export_directory("ledgerq", store, "jobs", theirs)
        (segment,) = theirs.glob("*.log")
        data = bytearray(segment.read_bytes())
        place = ledgerq.HEADER_BYTES + ledgerq.ENTRY_BYTES + 1  # after the priority
        data[place : place + 8] = expiry.to_bytes(8, "little", signed=True)
        segment.write_bytes(data)
        change_entry(segment, 0, 1, ledgerq.MESSAGE)
        report = import_directory("ledgerq", theirs, store, name="again")
        assert report.records == 3
        assert len(store.queue("again").get_many(9, timeout=0)) == left
    assert [problem.lost for problem in report.problems] == ["the expiry of message 1"]


def test_a_read_position_of_ledgerq_that_cannot_be_is_reported(tmp_path: Path) -> None:
    """Every message is delivered, because it is not known which were."""
    with stratalog.open(tmp_path / "store") as store:
        theirs = ledgerq_queue(tmp_path / "theirs", store)
        path = theirs / ledgerq.METADATA_NAME
        version, _, _, rest = ledgerq.METADATA.unpack(path.read_bytes()[: ledgerq.METADATA_BYTES])
        path.write_bytes(ledgerq.METADATA.pack(version, (1 << 64) - 1, (1 << 64) - 1, rest))
        report = import_directory("ledgerq", theirs, store, name="again")
        assert report.records == 3
        (problem,) = report.problems
        assert problem.lost == "the read position: every message is delivered"


# --- damage by hand in a directory of FluxMQ ----------------------------------------------------


def copied(case: str, root: Path) -> Path:
    """The directory of a case, to be damaged."""
    shutil.copytree(FLUXMQ / case / "data", root)
    return root


def imported(theirs: Path, root: Path) -> tuple[Any, dict[str, list[tuple[int, bytes | None]]]]:
    """The report of an import, and the records that are there."""
    with stratalog.open(root) as store:
        report = import_directory("fluxmq", theirs, store)
        records = {
            name: [(one["offset"], one["value"]) for one in _table(store, name)]
            for name in store.topics()
        }
    return report, records


def _table(store: stratalog.Store, name: str) -> list[dict[str, Any]]:
    topic = store.topic(name)
    names = ["offset", "value"]
    found: list[dict[str, Any]] = (
        topic.read_arrow(topic.earliest, columns=names).read_all().to_pylist()
    )
    return found


@pytest.mark.parametrize("suffix", [".idx", ".tix"])
@pytest.mark.parametrize("how", ["missing", "empty", "stale", "noise"])
def test_indexes_of_fluxmq_cost_nothing(suffix: str, how: str, tmp_path: Path) -> None:
    """Records are found without them, as FluxMQ builds them anew."""
    whole = imported(copied("none", tmp_path / "whole"), tmp_path / "a")
    theirs = copied("none", tmp_path / "theirs")
    indexes = sorted(theirs.rglob(f"*{suffix}"))
    assert indexes
    for path in indexes:
        if how == "missing":
            path.unlink()
        else:
            data = path.read_bytes()
            path.write_bytes({"empty": b"", "stale": data[: len(data) // 2]}.get(how, b"\xff" * 99))
    report, records = imported(theirs, tmp_path / "b")
    assert records == whole[1]
    assert report.problems == whole[0].problems == []


def test_damage_in_the_middle_of_a_segment_of_fluxmq_costs_one_batch(tmp_path: Path) -> None:
    """It is reported with its file, and the rest of the segment is there."""
    _, whole = imported(copied("none", tmp_path / "whole"), tmp_path / "a")
    theirs = copied("none", tmp_path / "theirs")
    segment = sorted(theirs.rglob("*.seg"))[0]
    data = bytearray(segment.read_bytes())
    data[fluxmq.BATCH_BYTES + 3] ^= 0x40
    segment.write_bytes(data)
    count = int(fluxmq.BATCH.unpack_from(data)[4])
    report, records = imported(theirs, tmp_path / "b")
    (problem,) = report.problems
    assert (problem.path, problem.position) == (str(segment.relative_to(theirs)), 0)
    name = segment.parents[1].name
    assert records[name] == whole[name][count:]


def test_a_torn_tail_of_fluxmq_costs_its_last_batch(tmp_path: Path) -> None:
    """Whatever length is left of it."""
    _, whole = imported(copied("none", tmp_path / "whole"), tmp_path / "a")
    for cut in (1, 20):
        theirs = copied("none", tmp_path / f"theirs{cut}")
        segment = sorted(theirs.rglob("*.seg"))[-1]
        segment.write_bytes(segment.read_bytes()[:-cut])
        report, records = imported(theirs, tmp_path / f"b{cut}")
        (problem,) = report.problems
        assert problem.what == "The last batch is cut short: a torn write."
        name = segment.parents[1].name
        kept = records[name]
        assert kept == whole[name][: len(kept)]
        assert len(kept) < len(whole[name])


@pytest.mark.parametrize("file", ["state.json", "pel_0.json", "ops.log"])
def test_damage_in_the_state_of_a_group_of_fluxmq_is_reported(file: str, tmp_path: Path) -> None:
    """The records come all the same, and the file is named."""
    theirs = copied("group_compacted", tmp_path / "theirs")
    for directory in (theirs / "queues" / "orders" / "consumers").iterdir():
        (directory / file).write_bytes(b'{"version": 1, "st\xff')
    report, records = imported(theirs, tmp_path / "store")
    assert file in {Path(problem.path).name for problem in report.problems}
    assert records["orders"]


def test_a_group_of_fluxmq_with_numbers_that_cannot_be_is_reported(tmp_path: Path) -> None:
    """It does not count up to them, and consumers find a group they can use."""
    theirs = copied("group_compacted", tmp_path / "theirs")
    (workers,) = (theirs / "queues" / "orders" / "consumers").iterdir()
    line = {"t": fluxmq.DELIVER, "o": (1 << 62) + 5, "c": "one", "ts": 1 << 62}
    ack = line | {"t": fluxmq.ACK}
    with (workers / "ops.log").open("a") as file:
        file.write(json.dumps(line) + "\n" + json.dumps(ack) + "\n")
    report, _ = imported(theirs, tmp_path / "store")
    assert [one.what for one in report.problems] == ["Group 'workers' has numbers that cannot be."]


def test_a_segment_of_fluxmq_whose_name_cannot_be_is_reported(tmp_path: Path) -> None:
    """It was passed over in silence, with all its records."""
    root = fluxmq_queue(tmp_path / "theirs", batch_at(0))
    name = f"{1 << 63:020d}.seg"
    (root / "queues" / "q" / "segments" / name).write_bytes(batch_at(1))
    with stratalog.open(tmp_path / "ours") as store:
        report = import_directory("fluxmq", root, store)
        assert store.topic("q").read_values() == [b"v"]
    (problem,) = report.problems
    assert name in problem.path
    assert problem.lost == "all records of the file"


# --- files that are missing, and numbers that do not fit together ---------------------------------


def test_a_segment_of_fluxmq_that_is_missing_is_reported(tmp_path: Path) -> None:
    """It was a gap that no problem named."""
    theirs = copied("none", tmp_path / "theirs")
    first, missing, following = sorted(theirs.rglob("*.seg"))[:3]
    missing.unlink()
    report, records = imported(theirs, tmp_path / "store")
    (problem,) = report.problems
    assert problem.path == str(following.relative_to(theirs))
    assert problem.lost == f"records {int(missing.stem)} to {int(following.stem) - 1}"
    (name,) = records
    assert int(missing.stem) not in [offset for offset, _ in records[name]]
    assert records[name][0][0] == int(first.stem)


def test_offsets_of_fluxmq_that_go_back_are_reported(tmp_path: Path) -> None:
    """An import said that another writer had appended to the topic."""
    theirs = fluxmq_queue(tmp_path / "theirs", batch_at(0), batch_at(5), batch_at(3), batch_at(6))
    report, records = imported(theirs, tmp_path / "store")
    assert [offset for offset, _ in records["q"]] == [0, 5, 6]
    assert "the later records with these offsets" in [one.lost for one in report.problems]
    with stratalog.open(tmp_path / "store") as store:
        assert import_directory("fluxmq", theirs, store).records == 0


def test_a_message_of_ledgerq_that_is_missing_is_reported(tmp_path: Path) -> None:
    """An id that no entry has was a gap that no problem named."""
    with stratalog.open(tmp_path / "store") as store:
        theirs = ledgerq_queue(tmp_path / "theirs", store)
        (segment,) = theirs.glob("*.log")
        change_entry(segment, 2, 3, 5)
        report = import_directory("ledgerq", theirs, store, name="again")
        assert [problem.lost for problem in report.problems] == ["messages 3 to 4"]
        assert import_directory("ledgerq", theirs, store, name="again").records == 0


def numbers_of(theirs: Path, next_id: int, read_id: int) -> None:
    """Change the numbers in `metadata.dat`."""
    data = ledgerq.METADATA.pack(ledgerq.VERSION, next_id, read_id, 0)
    (theirs / ledgerq.METADATA_NAME).write_bytes(data)


@pytest.mark.parametrize("next_id", [5, 1 << 31, 1 << 40])
def test_a_next_id_of_ledgerq_that_no_message_leads_up_to_is_reported(
    next_id: int, tmp_path: Path
) -> None:
    """No checksum covers it. A gap of thousands of millions took gigabytes to read."""
    with stratalog.open(tmp_path / "store") as store:
        theirs = ledgerq_queue(tmp_path / "theirs", store)
        numbers_of(theirs, next_id, 1)
        report = import_directory("ledgerq", theirs, store, name="again")
        (problem,) = report.problems
        assert problem.path == ledgerq.METADATA_NAME
        assert len(store.queue("again").get_many(9, timeout=0)) == 3
        assert store.topic("again").next_offset == (4 if next_id == 1 << 40 else next_id)


def test_a_read_position_of_ledgerq_after_everything_is_reported(tmp_path: Path) -> None:
    """Every message counts as consumed."""
    with stratalog.open(tmp_path / "store") as store:
        theirs = ledgerq_queue(tmp_path / "theirs", store)
        numbers_of(theirs, 4, 1000)
        report = import_directory("ledgerq", theirs, store, name="again")
        assert "every message counts as consumed" in report.problems[0].lost
        assert store.queue("again").get_nowait() is None


def test_a_queue_of_ledgerq_without_messages_goes_on_with_its_next_id(tmp_path: Path) -> None:
    """LedgerQ drops segments that were consumed: that is no loss."""
    with stratalog.open(tmp_path / "store") as store:
        store.queue("empty")
        theirs = tmp_path / "theirs"
        export_directory("ledgerq", store, "empty", theirs)
        numbers_of(theirs, 1001, 1001)
        report = import_directory("ledgerq", theirs, store, name="again")
        assert report.problems == []
        assert store.queue("again").put(b"next").offset == 1001
        assert [item.offset for item in store.topic("again").read()] == [1001]  # type: ignore[union-attr]


def test_a_maximum_of_retries_that_cannot_be_is_reported(tmp_path: Path) -> None:
    """The import ended with an error after all messages had been taken over."""
    with stratalog.open(tmp_path / "store") as store:
        theirs = ledgerq_queue(tmp_path / "theirs", store)
        state = {"version": 1, "max_retries": 10**30, "entries": []}
        (theirs / ledgerq.RETRY_NAME).write_text(json.dumps(state))
        report = import_directory("ledgerq", theirs, store, name="again")
        (problem,) = report.problems
        assert problem.lost == "max_deliveries: the queue has the default"
        assert len(store.queue("again")) == 3


def test_times_of_fluxmq_that_go_back_are_event_times_and_go_out_again(tmp_path: Path) -> None:
    """Times never go back within a topic: the earlier ones are kept beside them."""
    stamps = [10**12, 10**12 - 5, 10**12 + 3, 10**12 - 7]
    batch = encode_batch([Row(at, stamp, None, b"v", []) for at, stamp in enumerate(stamps)])
    theirs = fluxmq_queue(tmp_path / "theirs", batch)
    with stratalog.open(tmp_path / "store") as store:
        report = import_directory("fluxmq", theirs, store)
        assert "2 records of 'q' are older" in report.problems[0].what
        found = [record.event_time for record in store.topic("q").records()]
        assert found == [stamp * 10**6 for stamp in stamps]
        export_directory("fluxmq", store, "q", tmp_path / "out")
    again = read_directory("fluxmq", tmp_path / "out").topics["q"].read_all()
    times = again.column("timestamp").cast("int64").to_pylist()
    assert times == [stamp * 10**6 for stamp in stamps]
