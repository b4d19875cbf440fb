"""Every way into the log leaves the same bytes: recovery and readers know one kind of frame."""

from __future__ import annotations

import ast
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.crash.model import kill, open_store

import stratalog
from stratalog.format.arrow import TYPES
from stratalog.handles.topic import Topic
from stratalog.log.append import append_entries
from stratalog.model import Record
from stratalog.testing import FakeDisk, ManualClock

Fields = dict[str, Any]
RECORDS: dict[str, list[Fields]] = {
    "values": [{"value": b"1"}, {"value": b""}, {"value": bytes(1500)}],
    "one value": [{"value": b"12345678"}],
    "no values": [{"value": None}, {"value": b"1"}, {"value": None}],
    "one that is None": [{"value": None}],
    "keys": [{"value": b"1", "key": b"k"}, {"value": b"2", "key": b""}],
    "a key": [{"value": b"1", "key": b"k"}],
    "some keys": [{"value": b"1"}, {"value": b"2", "key": b"k"}, {"value": b"3"}],
    "a late column": [{"value": b"1"}, {"value": b"2"}, {"value": b"3", "tag": "t"}],
    "an early column": [{"value": b"1", "node": "n"}, {"value": b"2"}, {"value": b"3"}],
    "headers": [{"value": b"1", "headers": {"a": b"1", "b": b""}}, {"value": b"2"}],
    "one of all": [{"value": b"", "key": b"k", "tag": "t", "node": "ü", "headers": {"h": b"v"}}],
    "times": [{"value": b"1", "timestamp": 2 * 10**18}, {"value": b"2", "timestamp": 3 * 10**18}],
}  # fmt: skip


def _each(topic: Topic, fields: list[Fields]) -> None:
    for one in fields:
        topic.append(**one, durability="disk")
    topic._store.sync()


def _nowait(topic: Topic, fields: list[Fields]) -> None:
    futures = [topic.append_nowait(**one) for one in fields]
    for future in futures:
        future.result()


def _asyncio(topic: Topic, fields: list[Fields]) -> None:
    names = ("key", "headers", "tag", "node", "timestamp", "ttl")
    futures = [topic.enter(one["value"], tuple(map(one.get, names)), None)[0] for one in fields]
    for future in futures:
        future.result()


def _batch(topic: Topic, fields: list[Fields]) -> None:
    with topic._store.batch() as batch:
        batch.topic("t").append_many([Record(**one) for one in fields])


def _asyncio_many(topic: Topic, fields: list[Fields]) -> None:
    group, *_ = topic.enter_many([Record(**one) for one in fields], None)
    topic.log.shard.commit(group)


def _arrow(topic: Topic, fields: list[Fields]) -> None:
    names = list(dict.fromkeys(name for one in fields for name in one))
    columns = {
        name: pa.array(
            [
                list(item.items()) if isinstance(item := one.get(name), dict) else item
                for one in fields
            ],
            TYPES[name],
        )
        for name in names
    }
    topic.append_arrow(pa.record_batch(columns))


def _entries(topic: Topic, fields: list[Fields]) -> None:
    """The general way, for what `append_many` has a shorter one."""
    entries, remake = topic.encode_records([Record(**one) for one in fields])
    append_entries(topic.log, entries, topic.log.rank, remake)


WAYS: dict[str, Callable[[Topic, list[Fields]], object]] = {
    "append": _each,
    "append_nowait": _nowait,
    "append in asyncio": _asyncio,
    "append_many": lambda topic, fields: topic.append_many([Record(**one) for one in fields]),
    "append_many in asyncio": _asyncio_many,
    "append_arrow": _arrow,
    "batch": _batch,
    "frames": _entries,
}


def _written(
    way: Callable[[Topic, list[Fields]], object], fields: list[Fields], compression: str
) -> dict[str, bytes]:
    """The log after records were appended in one way, as they are on the disk."""
    disk = FakeDisk()
    store = open_store(disk, ManualClock(), shards=1)
    topic = store.create_topic("t", compression=compression)
    way(topic, fields)
    files = {path: data.rstrip(b"\0") for path, data in disk.image().items() if "/log/" in path}
    assert topic.read_values() == [one["value"] for one in fields]
    kill(store)
    return files


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("records", RECORDS)
@pytest.mark.parametrize("way", WAYS)
def test_every_way_in_leaves_the_bytes_of_the_general_way(
    way: str, records: str, compression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that look at less, or gather: a record is stored in one form."""
    monkeypatch.setattr(secrets, "token_bytes", lambda size: b"i" * size)  # frames depend on it
    fields = RECORDS[records]
    assert _written(WAYS[way], fields, compression) == _written(_entries, fields, compression)


@pytest.mark.parametrize("records", ["one value", "one that is None", "a key", "one of all"])
def test_a_lone_synced_append_leaves_the_same_bytes(
    records: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written past the open group."""
    monkeypatch.setattr(secrets, "token_bytes", lambda size: b"i" * size)
    fields = RECORDS[records]
    alone = _written(lambda topic, fields: topic.append(**fields[0]), fields, "none")
    assert alone == _written(_entries, fields, "none")


def test_plain_values_in_a_list_leave_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are joined without a look at one of them."""
    monkeypatch.setattr(secrets, "token_bytes", lambda size: b"i" * size)
    fields = RECORDS["values"]
    values = [one["value"] for one in fields]
    plain = _written(lambda topic, _: topic.append_many(values), fields, "none")
    assert plain == _written(_entries, fields, "none")


PUTS: dict[str, Fields] = {
    "a value": {},
    "an id": {"dedup_id": "x"},
    "a priority": {"priority": 3},
    "all": {"dedup_id": b"", "priority": 255, "headers": {"h": b"v"}, "ttl": 60.0, "delay": 5.0},
}


@pytest.mark.parametrize("put", PUTS)
def test_a_message_leaves_the_bytes_of_a_record(put: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its id is the key of its record, its delay and time to live are moments."""
    monkeypatch.setattr(secrets, "token_bytes", lambda size: b"i" * size)
    given = PUTS[put]
    files = []
    for is_put in (True, False):
        disk, clock = FakeDisk(), ManualClock()
        store = open_store(disk, clock, shards=1)
        queue = store.queue("t")
        now = clock.time_ns()
        key = given.get("dedup_id")
        if is_put:
            queue.put(b"v", **given)
        else:
            record = Record(
                b"v", key.encode() if isinstance(key, str) else key, given.get("headers", {}),
                priority=given.get("priority", 0),
                expires_at=now + round(given["ttl"] * 10**9) if "ttl" in given else 0,
                not_before=now + round(given["delay"] * 10**9) if "delay" in given else 0,
            )  # fmt: skip
            entries, remake = queue.topic.encode_records([record])
            append_entries(queue.topic.log, entries, queue.topic.log.rank, remake)
        images = disk.image().items()
        files.append({path: data.rstrip(b"\0") for path, data in images if "/log/" in path})
        kill(store)
    assert files[0] == files[1]


@pytest.mark.parametrize("condition", [False, True])
def test_the_fast_put_of_a_table_leaves_the_bytes_of_the_general_way(
    condition: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record's key enters by a way of its own, also after records that have other columns."""
    monkeypatch.setattr(secrets, "token_bytes", lambda size: b"i" * size)
    files = []
    for is_fast in (True, False):
        disk = FakeDisk()
        store = open_store(disk, ManualClock(), shards=1, durability="disk")
        table = store.table("t")
        if not is_fast:
            table.projection.is_quick = False
            monkeypatch.setattr(table.projection, "_account", lambda: None)
        for number in range(4):
            wanted = {"if_absent": True} if condition and not number else {}
            version = table.put("k", b"%d" % number, **wanted)  # type: ignore[arg-type]
            if condition:
                version = table.put("k", b"again", if_version=version)
            if number == 1:
                table.put(b"bytes", b"", ttl=5.0)
                table.delete(b"bytes")
        assert [one.value for one in table.history("k")][-1] == (b"again" if condition else b"3")
        store.sync()
        images = disk.image().items()
        files.append({path: data.rstrip(b"\0") for path, data in images if "/log/" in path})
        kill(store)
    assert files[0] == files[1]


def _assigns(tree: ast.AST, name: str) -> bool:
    """Whether code sets an attribute of that name of anything but `self`."""
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        for target in targets:
            for part in ast.walk(target):
                if isinstance(part, ast.Attribute) and part.attr == name:
                    return True
    return False


def test_offsets_advance_in_one_module() -> None:
    """Elsewhere they are only found again, by recovery, or given back, by the topic itself."""
    package = Path(stratalog.__file__).parent
    found = {
        path.relative_to(package).as_posix()
        for room in ("log", "segments", "state", "consume", "upkeep", "handles", "aio")
        for path in (package / room).rglob("*.py")
        if _assigns(ast.parse(path.read_text()), "next_offset")
    }
    assert found == {"log/append.py", "log/topic.py"}
