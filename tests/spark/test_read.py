"""A store as a DataFrame: everything that is there, and nothing that is not."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import from_url
from tests.conftest import OpenStore
from tests.spark.frames import ALL, expected, frame, offsets, read, rows
from tests.spark.reuse import pushdown

import stratalog.spark
from stratalog.errors import ClosedError, ReadOnlyError
from stratalog.fs.bucket import BucketFileSystem
from stratalog.handles.store import Store
from stratalog.model import Record
from stratalog.spark import register

HOUR = 3600


def fill(store: Store) -> None:
    """Two topics, with every column, in sealed, cold and open segments and in the log."""
    orders = store.create_topic("orders", segment_records=100, compression="zstd")
    for first in range(0, 450, 150):
        orders.append_many([_record(n) for n in range(first, first + 150)])
        store.checkpoint()
    orders.delete(offsets=[3, 4, 5, 250])
    store.compact()
    orders.append_many([_record(n) for n in range(450, 500)])
    for n in range(500, 510):
        orders.append(b"%d" % n, key=b"single", ttl=HOUR)
    orders.delete(offsets=[449, 455])
    refunds = store.create_topic("refunds")
    refunds.append_many([b"plain %d" % n for n in range(20)])


def _record(n: int) -> Record:
    return Record(
        value=None if n % 11 == 0 else b"value %d" % n,
        key=b"key %d" % (n % 7) if n % 3 else None,
        headers={"a": b"%d" % n, "b": b""} if n % 2 else {},
        tag=f"tag-{n % 5}" if n % 4 else None,
        node="here" if n % 2 else None,
        priority=n % 256 if 200 <= n < 300 else 0,
        not_before=10**18 + 10**9 * n if n > 400 else 0,
        operation=1 if n == 42 else 0,
    )


@pytest.fixture(params=["a writer at rest", "a writer at work"])
def filled(
    open_store: OpenStore, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Store]:
    """A store with everything in it; one that is at work moves, but does not change, its topics."""
    store = open_store(cold=str(tmp_path / "cold"), hot_segments=1, background=False)
    fill(store)
    is_over = threading.Event()

    def work() -> None:
        while not is_over.wait(0.05) and not store.is_closed:
            with contextlib.suppress(ClosedError):  # some tests close it
                store.topic("noise").append_many([b"x" * 100] * 50)
                store.snapshot()

    writer = threading.Thread(target=work)
    if request.param == "a writer at work":
        writer.start()
    yield store
    is_over.set()
    if writer.ident is not None:
        writer.join()


def test_everything_is_read_beside_its_writer(spark: Any, filled: Store) -> None:
    """Cold, sealed, open and in the log, in one DataFrame, found without registration."""
    assert filled.topic("orders").stats().cold_segments == 3
    assert len(filled.topic("orders").read_values()) == 504
    frames = frame(spark, filled.path, "orders,refunds", includeHeaders=True)
    assert rows(frames) == expected(filled, "orders", "refunds")


def test_a_store_that_was_closed_is_read_as_well(spark: Any, filled: Store) -> None:
    """Also through a file URL."""
    wanted = expected(filled, "orders")
    filled.close()
    found = frame(spark, f"file://{filled.path}", "orders", includeHeaders="TRUE")
    assert rows(found) == wanted


def test_the_columns_are_those_that_were_asked_for(spark: Any, filled: Store) -> None:
    """Headers only on demand; a schema of one's own reaches the reader, in its order."""
    plain = frame(spark, filled.path, "refunds")
    assert plain.columns == [
        "topic", "offset", "timestamp", "key", "value", "tag", "node", "priority", "expires_at",
        "not_before", "operation", "event_time",
    ]  # fmt: skip
    reader = spark.read.format("stratalog").option("topic", "refunds")
    assert rows(reader.schema(ALL).load(filled.path)) == expected(filled, "refunds")
    chosen = reader.schema("value binary, offset bigint").load(filled.path)
    assert chosen.columns == ["value", "offset"]
    assert chosen.where("offset = 7").collect()[0]["value"] == b"plain 7"


def test_ranges_say_where_to_look(spark: Any, filled: Store) -> None:
    """Only there: what is damaged elsewhere is not noticed, and what is found is exact."""
    orders = filled.topic("orders")
    wanted = expected(filled, "orders")
    sealed = sorted(Path(filled.path).glob("topics/*/*.seg"))[0]
    assert sealed.name == f"{300:020d}.seg"
    damaged = bytearray(sealed.read_bytes())
    damaged[200] ^= 1
    sealed.write_bytes(damaged)
    (one,) = orders.read(480, limit=1)
    assert isinstance(one, Record)
    since = one.timestamp
    later = stratalog.spark.read(spark, filled.path, "orders", since=since)
    assert later.count() == sum(row["timestamp"] >= since // 1000 for row in wanted)
    newest = frame(spark, filled.path, "orders", startingOffsets=490)
    single = newest.where("key = X'73696E676C65' AND offset > 490")
    assert offsets(single) == list(range(500, 510))
    first = stratalog.spark.read(spark, filled.path, "orders", end=9).where("offset IN (7, 8)")
    assert first.count() == 2
    with pytest.raises(Exception, match=rf"{sealed.name} at position 64: .*checksum"):
        frame(spark, filled.path, "orders").where("offset < 9").count()
    assert (orders.next_offset, orders.stats().records) == (510, 504)  # six were deleted


def test_a_session_that_pushes_filters_reads_the_same(spark: Any, filled: Store) -> None:
    """Which a user may have asked Spark for; the name may be registered too."""
    register(spark)
    with pushdown(spark, "true"):
        assert frame(spark, filled.path, "orders").where("offset >= 500").count() == 10


def test_nothing_there_is_an_empty_frame(spark: Any, open_store: OpenStore) -> None:
    """A topic without records, and one whose records are in its writer's memory alone."""
    store = open_store()
    store.topic("empty")
    store.create_topic("fleeting", durability="ephemeral").append_many([b"1", b"2"])
    assert frame(spark, store.path, "empty,fleeting").count() == 0


@pytest.mark.parametrize(
    ("topic", "options", "message"),
    [
        (
            "ordes",
            {},
            "UnknownTopicError: There is no topic 'ordes' in this store. Did you mean 'orders'?",
        ),
        ("orders", {"startingOffset": "3"}, "OptionError: .*did you mean 'startingOffsets'"),
        ("orders", {"startingOffsets": "999"}, "OffsetOutOfRangeError: .*999 is out of range"),
        ("", {}, "OptionError: which topic"),
    ],
)
def test_what_is_wrong_is_said(
    spark: Any, filled: Store, topic: str, options: dict[str, str], message: str
) -> None:
    """In the text of Spark's own exception."""
    with pytest.raises(Exception, match=message):
        frame(spark, filled.path, topic, **options).count()


def test_a_path_without_a_store_is_said(spark: Any, tmp_path: Path) -> None:
    """Whether there is nothing at all or something else."""
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(Exception, match=f"NotAStoreError: {path} is not a Stratalog store"):
            frame(spark, path, "t").count()


def test_a_store_in_a_bucket_is_read(
    spark: Any, open_store: OpenStore, tmp_path: Path, s3_endpoint: str
) -> None:
    """A backup that was copied there: segments, snapshot and log, and nothing of it is written."""
    store = open_store(background=False)
    orders = store.create_topic("orders", segment_records=100)
    orders.append_many([Record(value=b"%d" % n, key=b"k") for n in range(250)])
    store.checkpoint()
    store.backup(tmp_path / "copy")
    orders.append_many([b"%d" % n for n in range(250, 260)])
    wanted = expected(store, "orders")
    store.close()
    prefix = uuid.uuid4().hex
    location = f"s3://me:secret@bucket/{prefix}?endpoint=http://{s3_endpoint}"
    bucket = from_url(
        f"s3://bucket/{prefix}",
        config={"endpoint": f"http://{s3_endpoint}", "access_key_id": "me",
                "secret_access_key": "secret"},
        client_options={"allow_http": True},
    )  # fmt: skip
    for name in ("copy", "data"):
        for file in (tmp_path / name).rglob("*"):
            if file.is_file():
                obstore.put(bucket, f"{name}/{file.relative_to(tmp_path / name)}", file)
    where = location.replace(prefix, f"{prefix}/copy")
    copied = frame(spark, where, "orders", includeHeaders=True)
    assert rows(copied) == wanted[:250]
    assert rows(read(location.replace(prefix, f"{prefix}/data"), "orders")) == wanted
    with pytest.raises(Exception, match=f"NotAStoreError: s3://bucket/{prefix} is not") as caught:
        frame(spark, location, "orders").count()
    assert "secret" not in str(caught.value)
    with pytest.raises(ReadOnlyError, match="can be read, not written"):
        Store(  # as a writer would
            f"s3://bucket/{prefix}", stratalog.options.StoreOptions(), fs=BucketFileSystem(location)
        )
