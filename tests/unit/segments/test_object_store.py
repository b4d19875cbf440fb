"""A whole store on an object store: moved there, read, evicted, and the store goes away."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

import stratalog
from stratalog import ColdStoreError, Gap, Record


@pytest.fixture
def location(s3_endpoint: str) -> str:
    """A place of its own in the bucket, credentials included."""
    prefix = uuid.uuid4().hex
    return f"s3://me:secret@bucket/{prefix}?endpoint_override={s3_endpoint}&scheme=http"


def test_a_store_lives_with_an_object_store(tmp_path: Path, location: str) -> None:
    """Everything reads as if it were here, from the writer, after a reopen and from a view."""
    with stratalog.open(tmp_path, cold=location, hot_segments=1, durability="disk") as store:
        topic = store.create_topic("t", segment_records=100, compression="zstd")
        topic.append_many([Record(value=b"value %d" % n * 20, key=b"k%d" % n) for n in range(550)])
        topic.delete(offsets=[7])
        assert store.compact().segments_moved == 4
        assert topic.stats().cold_segments == 4
        expected = [n for n in range(550) if n != 7]
        assert [r.offset for r in topic.read() if isinstance(r, Record)] == expected
        assert topic.diff(after=120, limit=10).cold_segments_read == 1
        with stratalog.open(tmp_path, read_only=True, cold=location) as view:
            assert view.topic("t").read_arrow().read_all().num_rows == 549
    with stratalog.open(tmp_path, cold=location, hot_segments=1) as store:
        topic = store.topic("t")
        assert next(topic.read(start=42, limit=1)) == Record(
            value=b"value 42" * 20, key=b"k42", offset=42, timestamp=topic.stats().newest_timestamp
        )
        topic.delete(before=250)
        store.compact()
        assert topic.stats().cold_segments == 2
        assert topic.read_values(0, limit=1) == [b"value 250" * 20]


def test_an_object_store_that_is_away_fails_cold_reads_alone(tmp_path: Path, location: str) -> None:
    """With an error that names the segment and the place, and no secret."""
    with stratalog.open(tmp_path, cold=location, hot_segments=0, durability="disk") as store:
        topic = store.create_topic("t", segment_records=10)
        topic.append_many([b"%d" % n for n in range(25)])
        store.compact()
    gone = "s3://me:secret@bucket/x?endpoint_override=127.0.0.1:1&scheme=http"
    with stratalog.open(tmp_path, cold=gone) as store:
        topic = store.topic("t")
        with pytest.raises(ColdStoreError, match="s3://bucket/x") as caught:
            list(topic.read())
        assert "secret" not in str(caught.value)
        assert next(r.value for r in topic.read(20) if not isinstance(r, Gap)) == b"20"
        assert topic.append(b"goes on") == 25
