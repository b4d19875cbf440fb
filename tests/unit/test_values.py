"""Typed values: what is checked at append, what is read back, and how types evolve."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import pyarrow as pa
import pydantic
import pytest

import stratalog
import stratalog.aio
from stratalog import (
    CaughtUp,
    InvalidValueError,
    OptionError,
    Record,
    SchemaMismatchError,
    Store,
    UndecodableValueError,
    UsageError,
    WrongKindError,
    WrongTypeError,
)


class Line(msgspec.Struct):
    item: str
    price: float


class Order(msgspec.Struct):
    id: int
    lines: list[Line] = []
    note: str | None = None


@dataclasses.dataclass
class Reading:
    device: str
    value: float


class User(pydantic.BaseModel):
    name: str
    age: int = pydantic.Field(alias="years", ge=0)


ENCODINGS: tuple[Literal["json", "msgpack"], ...] = ("json", "msgpack")

VALUES: list[Any] = [
    Order(1, [Line("tea", 2.5)], "fragile"),
    Reading("a", 1.5),
    User(name="Ada", years=36),
    {"a": [1, 2.5, None, True, {"b": "c"}]},
    [1, "two", None],
]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with stratalog.open(tmp_path / "data", durability="memory", shards=1) as store:
        yield store


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_is_read_back_as_it_was(store: Store, value: Any, encoding: Any) -> None:
    """By every way of reading, and after the store was opened again."""
    topic = store.topic("t", type=type(value), encoding=encoding)
    assert topic.append(value, key=b"k") == 0
    assert topic.append_many([value, Record(value, tag="x")]) == (1, 2)
    assert topic.append_nowait(value).result() == 3
    assert topic.read_values() == [value] * 4
    assert [record.value for record in topic.records(tag="x", reverse=True)] == [value]
    assert [record.value for record in topic.read(2) if isinstance(record, Record)] == [value] * 2
    assert [record.value for record in topic.read(1, limit=1) if isinstance(record, Record)]
    assert topic.diff(after=1, limit=1).records[0].value == value
    (record,) = topic.records(key=b"k")
    assert record.raw == store.topic("t").read_values(limit=1)[0]
    assert store.topic("t").options.encoding == encoding
    store.checkpoint()
    with stratalog.open(store.path, read_only=True) as reader:
        assert reader.topic("t", type=type(value)).read_values() == [value] * 4


def test_text_is_stored_as_it_is(store: Store) -> None:
    """UTF-8 without quotes, as every other program reads it."""
    topic = store.topic("t", type=str)
    topic.append("grüß dich")
    assert topic.read_values() == ["grüß dich"]
    assert store.topic("t").read_values() == ["grüß dich".encode()]
    for wrong in (b"bytes", 7, None, "\ud800"):
        with pytest.raises(InvalidValueError, match="Nothing was written"):
            topic.append(wrong)  # type: ignore[arg-type]
    assert topic.next_offset == 1


def test_bytes_are_no_type(store: Store) -> None:
    """The handle is the one without a type, and the topic's options stay as they were."""
    assert store.topic("t", type=bytes) is store.topic("t")
    assert store.topic("t").options.schema is None
    record = Record(value=b"x")
    assert record.raw == b"x"


BAD: list[tuple[Any, str]] = [
    (Order("7"), "id"),  # type: ignore[arg-type]
    (Order(7, [Line("tea", 1.0), Line("milk", "free")]), "lines[1].price"),  # type: ignore[arg-type]
    (Order(7, note=3), "note"),  # type: ignore[arg-type]
    (Order(7, [Line("tea", float("nan"))]), "lines[0].price"),
    (Reading("a", "warm"), "value"),  # type: ignore[arg-type]
    (User.model_construct(name="Ada", age=-1), "years"),
    ({"a": [1, {"b": float("nan")}]}, "a[1].b"),
    ({"a": (1, 2)}, "a"),
    ({1: 2}, "1"),
    ([1, {2}], "[1]"),
    ({"a": object()}, ""),
]


@pytest.mark.parametrize(("value", "field"), BAD)
def test_what_does_not_fit_is_refused_with_its_field(store: Store, value: Any, field: str) -> None:
    """In the call itself, alone and among others; nothing of it is written."""
    topic = store.topic("t", type=type(value))
    for call in (
        lambda: topic.append(value),
        lambda: topic.append_nowait(value),
        lambda: topic.append_many([value]),
        lambda: topic.append_many([Record(value, key=b"k")]),
    ):
        with pytest.raises(InvalidValueError, match="'t'") as caught:
            call()
        assert caught.value.field == field
    assert len(topic) == 0


def test_another_class_is_refused(store: Store) -> None:
    """A dict that would make a fine order is not one."""
    topic = store.topic("t", type=Order)
    with pytest.raises(InvalidValueError, match="of type Order, not dict"):
        topic.append({"id": 7})  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="of type Order, not bytes"):
        topic.append(b'{"id": 7}')  # type: ignore[arg-type]
    users = store.topic("u", type=User)
    with pytest.raises(InvalidValueError, match="of type User, not Order"):
        users.append(Order(1))  # type: ignore[arg-type]


def test_a_stored_value_that_does_not_fit_says_so_where_it_is_looked_at(store: Store) -> None:
    """Records before and after it are read, and its bytes and all else about it are there."""
    topic = store.topic("t", type=Order)
    topic.append(Order(1))
    raw = store.topic("t")
    raw.append(b'{"id": 2, "lines": [{"item": "tea"}]}', key=b"k", tag="x")
    raw.append(b"not json")
    raw.append(None)
    topic.append(Order(5))
    records = list(topic.records())
    assert [records[0].value, records[4].value] == [Order(1), Order(5)]
    assert records[1].raw == b'{"id": 2, "lines": [{"item": "tea"}]}'
    assert (records[1].key, records[1].tag, records[1].offset) == (b"k", "x", 1)
    with pytest.raises(UndecodableValueError, match=r"offset 1 of 't'.*lines\[0\].price") as caught:
        _ = records[1].value
    assert (caught.value.topic, caught.value.offset) == ("t", 1)
    assert caught.value.field == "lines[0].price"
    for broken in records[2:4]:
        with pytest.raises(UndecodableValueError):
            _ = broken.value
        assert "undecodable" in repr(broken)
    with pytest.raises(UndecodableValueError, match="offset 1"):
        topic.read_values()
    assert topic.read_values(4) == [Order(5)]


def test_records_can_be_copied_and_pickled(store: Store) -> None:
    """Typed or not."""
    store.topic("t", type=Order).append(Order(1), headers={"h": b"v"})
    store.topic("t", type=Order).append(Order(2))
    for record in [*store.topic("t", type=Order).records(), *store.topic("t").records()]:
        assert pickle.loads(pickle.dumps(record)) == record
        assert copy.copy(record) == record


def test_a_key_of_a_compacted_topic_can_be_deleted(store: Store) -> None:
    """A record that deletes a key has no value, whatever the type."""
    topic = store.create_topic("t", type=Order, compact=True)
    topic.append(Order(1), key=b"k")
    topic.append_many([Record(None, key=b"k", operation=1)])  # type: ignore[arg-type]
    assert [record.value for record in topic.records()] == [Order(1), None]


def test_arrow_data_is_checked(store: Store) -> None:
    """Values are bytes there, and each has to be one of the type."""
    topic = store.topic("t", type=Order)
    with pytest.raises(InvalidValueError, match="id"):
        topic.append_arrow(pa.table({"value": [b'{"id": 1}', b'{"id": "x"}']}))
    topic.append_arrow(pa.table({"value": [b'{"id": 1}']}))
    assert topic.read_values() == [Order(1)]
    assert topic.read_arrow().read_all()["value"].to_pylist() == [b'{"id": 1}']


def test_groups_have_the_type_of_their_topic(store: Store) -> None:
    """Polled and claimed; what does not fit can be acknowledged or given back all the same."""
    topic = store.topic("t", type=Order)
    topic.append(Order(1))
    store.topic("t").append(b"not json")
    group = topic.group("g")
    good, bad = group.poll("a")
    assert (good.value, good.raw) == (Order(1), b'{"id":1,"lines":[],"note":null}')
    with pytest.raises(UndecodableValueError, match="offset 1"):
        _ = bad.value
    assert "undecodable" in repr(bad)
    assert [one.offset for one in group.claim("b", idle=0)] == [0, 1]
    assert group.ack([0, 1]) == 2


def test_queues_have_a_type(store: Store) -> None:
    """Put, got, peeked at, worked on, and as a dead letter."""
    jobs = store.queue("jobs", type=Order, max_deliveries=1)
    assert jobs.type is Order
    jobs.put(Order(1))
    jobs.put_many([Order(2), Record(Order(3), key=b"once")])
    assert jobs.peek()[0].value == Order(1)
    with jobs.get() as message:
        assert (message.value, message.raw) == (Order(1), b'{"id":1,"lines":[],"note":null}')
    message = jobs.get()
    message.nack("no")
    (letter,) = jobs.dead.read()
    assert (letter.value, len(jobs.dead)) == (Order(2), 1)
    jobs.dead.requeue()
    seen: list[int] = []
    assert jobs.work(lambda one: seen.append(one.value.id), timeout=0).done == 2
    assert sorted(seen) == [2, 3]
    with pytest.raises(InvalidValueError, match="id"):
        jobs.put(Order("x"))  # type: ignore[arg-type]


def test_a_message_that_does_not_fit_ends_as_a_dead_letter(store: Store) -> None:
    """Its handler fails when it looks at it, as it would for any other reason."""
    jobs = store.queue("jobs", type=Order, max_deliveries=2)
    store.queue("jobs").put(b"not json")
    work = jobs.work(lambda one: one.value.id, timeout=0)
    assert (work.done, work.failed) == (0, 2)
    (letter,) = jobs.dead.read()
    assert letter.raw == b"not json"
    assert b"UndecodableValueError" in letter.headers["dlq.reason"]
    jobs.dead.requeue()
    assert store.queue("jobs").get_nowait().value == b"not json"  # type: ignore[union-attr]


def test_messages_that_a_worker_gives_back_are_not_changed(store: Store) -> None:
    """Those that were not begun come again, with the bytes that they had."""
    jobs = store.queue("jobs", type=Order)
    jobs.put_many([Order(n) for n in range(3)])
    taken = jobs.get_many(3)
    jobs.give_back(taken)
    assert [one.value for one in jobs.get_many(3)] == [Order(n) for n in range(3)]


def test_tables_have_a_type(store: Store) -> None:
    """Every way in and out."""
    users = store.table("users", type=Order)
    assert users.put("a", Order(1)) == 0
    users["b"] = Order(2)
    users.put_many({"c": Order(3)})
    users.update({"d": Order(4)})
    assert users.setdefault("d", Order(9)) == Order(4)
    assert users.setdefault("e", Order(5)) == Order(5)
    assert (users.get("a"), users["b"], users.get("z")) == (Order(1), Order(2), None)
    assert users.get("z", 0) == 0
    entry = users.entry("a")
    assert entry is not None
    assert entry.value == Order(1)
    assert [key for key, value in users.scan() if value.id > 3] == ["d", "e"]
    users.put("a", Order(10))
    assert users.get("a", at=0) == Order(1)
    assert users.pop("e") == Order(5)
    assert users.delete("b") is not None
    assert [one.value for one in users.history("b")] == [Order(2), None]
    changes = list(users.watch(start="snapshot", timeout=0))
    assert [one.value for one in changes if not isinstance(one, CaughtUp)] == [
        Order(10), Order(3), Order(4),
    ]  # fmt: skip
    assert [record.value for record in users.topic.records()][-1] is None
    with pytest.raises(InvalidValueError, match="users"):
        users.put("a", Order("x"))  # type: ignore[arg-type]
    with pytest.raises(WrongKindError, match="Counters"):
        users.add("hits")


def test_a_table_says_which_version_does_not_fit(store: Store) -> None:
    """By its key and by a scan; the handle without a type reads it."""
    users = store.table("users", type=Order)
    store.table("users").put("a", b"not json")
    for call in (lambda: users.get("a"), lambda: users["a"], lambda: list(users.scan())):
        with pytest.raises(UndecodableValueError, match="offset 0 of 'users'"):
            call()
    assert store.table("users").get("a") == b"not json"


def test_counters_are_ints(store: Store) -> None:
    """A table of int counts, and what it counted is an int."""
    hits = store.table("hits", type=int)
    hits["a"] = 5
    assert hits.add("a", 2) == 7
    assert hits["a"] == 7


def test_batches_take_types(store: Store) -> None:
    """Topics, queues and tables; a value that does not fit is told in the call."""
    with store.batch() as batch:
        appended = batch.topic("t", type=Order).append(Order(1), key=b"k")
        batch.topic("t", type=Order).append_many([Order(2), Record(Order(3))])
        batch.queue("q", type=Order).put(Order(4))
        batch.table("u", type=Order).put("a", Order(5))
        batch.table("n", type=int).add("hits", 2)
        with pytest.raises(InvalidValueError):
            batch.topic("t", type=Order).append(Order("x"))  # type: ignore[arg-type]
    assert appended.offset == 0
    assert store.topic("t", type=Order).read_values() == [Order(1), Order(2), Order(3)]
    assert store.queue("q", type=Order).get().value == Order(4)
    assert store.table("u", type=Order)["a"] == Order(5)
    assert store.table("n", type=int)["hits"] == 2


def test_tasks_have_types(tmp_path: Path) -> None:
    """Topics, groups, queues and batches of asyncio."""

    async def main() -> None:
        async with stratalog.aio.open(tmp_path / "data", shards=1) as store:
            topic = await store.topic("t", type=Order)
            await topic.append(Order(1))
            await topic.append_many([Order(2)])
            assert [one.value async for one in topic.records()] == [Order(1), Order(2)]
            group = await topic.group("g")
            assert [one.value for one in await group.poll()] == [Order(1), Order(2)]
            jobs = await store.queue("q", type=Order)
            await jobs.put(Order(3))
            async with jobs.get() as message:
                assert (message.value, message.raw) == (
                    Order(3), b'{"id":3,"lines":[],"note":null}',
                )  # fmt: skip
            with pytest.raises(UsageError, match=r"await store\.topic"):
                store.batch().topic("other", type=Order)
            async with store.batch() as batch:
                batch.topic("t", type=Order).append(Order(4))
                batch.queue("q", type=Order).put(Order(5))
            assert (await topic.read_values())[-1] == Order(4)
            plain = await store.queue("q")
            assert (await plain.get()).value == b'{"id":5,"lines":[],"note":null}'

    asyncio.run(main())


# --- evolution ---------------------------------------------------------------------------


def fields(**types: Any) -> Any:
    """Make a struct: a tuple is a type and a default."""
    made = [(n, *t) if isinstance(t, tuple) else (n, t) for n, t in types.items()]
    # A name of its own: msgspec makes no schema of two types of one name.
    return msgspec.defstruct("".join(["Value", *types]), made)


_Item: Any = fields(item=int)

GOOD_STEPS = [
    ({"a": int}, {"a": int, "b": (int, 0)}),
    ({"a": int, "b": int}, {"a": int}),
    ({"a": int}, {"a": float}),
    ({"a": int}, {"a": int | None}),
    ({"a": int}, {"a": (int, 0)}),
    ({"a": Literal["x"]}, {"a": Literal["x", "y"]}),
    ({"a": Literal["x"]}, {"a": str}),
    ({"a": list[int]}, {"a": list[float]}),
    ({"a": dict[str, int]}, {"a": dict[str, int | None]}),
    ({"a": Line}, {"a": fields(item=str)}),
    ({"a": Line | None}, {"a": fields(item=str, n=(int, 1)) | None}),
    ({"a": int}, {"a": Any}),
    ({"a": tuple[int, str]}, {"a": tuple[float, str]}),
]
BAD_STEPS = [
    ({"a": int}, {"a": str}, "a: stored as integer, the type has string"),
    ({"a": float}, {"a": int}, "a: stored as number, the type has integer"),
    ({"a": int}, {"a": int, "b": int}, "b: the type requires it, stored values lack it"),
    ({"a": (int, 0)}, {"a": int}, "a: the type requires it, stored values may lack it"),
    ({"a": int | None}, {"a": int}, "a: stored as null, the type has integer"),
    ({"a": str}, {"a": Literal["x"]}, "one of 'x'"),
    ({"a": Line}, {"a": fields(item=int)}, "a.item: stored as string, the type has integer"),
    ({"a": list[Line]}, {"a": list[_Item]}, r"a\[...\].item"),
    ({"a": bytes}, {"a": str}, "base64"),
    ({"a": Any}, {"a": int}, "stored as anything"),
    ({"a": dict[str, int]}, {"a": dict[str, str]}, "a"),
    ({"a": dict[str, int]}, {"a": Line}, "a: stored as object"),
    ({"a": list[int]}, {"a": tuple[int, int]}, "a"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after"), GOOD_STEPS)
def test_a_type_may_grow(store: Store, before: Any, after: Any) -> None:
    """Fields that are added with a default, dropped or widened: both are read after it."""
    old, new = fields(**before), fields(**after)
    values = {"a": 1, "b": 2}
    first = msgspec.convert(
        {name: _example(kind, values[name]) for name, kind in before.items()}, old
    )
    store.topic("t", type=old).append(first)
    topic = store.topic("t", type=new)
    topic.append(topic.read_values()[0])
    assert len(topic.read_values()) == 2
    assert store.topic("t", type=new) is topic


def _example(kind: Any, number: int) -> Any:
    kind = kind[0] if isinstance(kind, tuple) else kind
    for value in (number, "x", [number], {"item": "tea", "price": 1.0}, {"k": 1}, [1, "x"]):
        try:
            msgspec.convert(value, kind)
            return value
        except msgspec.ValidationError:
            pass
    raise AssertionError(kind)


@pytest.mark.parametrize(("before", "after", "why"), BAD_STEPS)
def test_a_type_that_cannot_read_what_is_there_is_refused(
    store: Store, before: Any, after: Any, why: str
) -> None:
    """With both sides shown; the topic stays as it was, for a reader, too."""
    old, new = fields(**before), fields(**after)
    kept = store.topic("t", type=old).options
    with pytest.raises(SchemaMismatchError, match=why) as caught:
        store.topic("t", type=new)
    assert caught.value.stored == kept.schema
    assert caught.value.stored in str(caught.value)
    assert caught.value.given in str(caught.value)
    assert store.topic("t").options == kept
    store.sync()
    with (
        stratalog.open(store.path, read_only=True) as reader,
        pytest.raises(SchemaMismatchError, match="cannot read every value"),
    ):
        reader.topic("t", type=new)


def test_a_field_that_was_dropped_does_not_come_back_as_another(store: Store) -> None:
    """Records with the first one are still there."""
    first = fields(a=int, b=int)
    store.topic("t", type=first).append(first(1, 2))
    store.topic("t", type=fields(a=int))
    with pytest.raises(SchemaMismatchError, match="b: stored as integer, the type has string"):
        store.topic("t", type=fields(a=int, b=(str, "")))
    store.topic("t", type=fields(a=int, b=(int, 0)))


def test_two_releases_of_a_program_may_take_turns(store: Store) -> None:
    """Neither makes the other's type incompatible, and nothing is written each time."""
    old, new = fields(a=int), fields(a=int, b=(int, 0))
    store.topic("t", type=old)
    store.topic("t", type=new)
    version = store.topic("t").log.version
    for kind in (old, new, old, new):
        store.topic("t", type=kind)
    assert store.topic("t").log.version == version


def test_unknown_fields_may_be_forbidden(store: Store) -> None:
    """Then none can be dropped."""

    class Strict(msgspec.Struct, forbid_unknown_fields=True):
        a: int

    store.topic("t", type=fields(a=int, b=int))
    with pytest.raises(SchemaMismatchError, match="b: stored values may have it"):
        store.topic("t", type=Strict)


class Tree(msgspec.Struct):
    name: str
    children: list[Tree] = []


def test_a_type_may_hold_itself(store: Store) -> None:
    """Its schema refers to itself, and can be compared."""
    topic = store.topic("t", type=Tree)
    topic.append(Tree("a", [Tree("b")]))
    store.topic("t", type=Tree)

    class Wood(msgspec.Struct):
        name: str
        children: list[int] = []

    with pytest.raises(SchemaMismatchError, match="children"):
        store.topic("t", type=Wood)


def test_bounds_of_a_model_count(store: Store) -> None:
    """They may be widened, and not narrowed."""

    class Loose(pydantic.BaseModel):
        years: int = 0
        name: str

    class Tight(pydantic.BaseModel):
        years: int = pydantic.Field(0, ge=18)
        name: str

    store.topic("t", type=User)
    store.topic("t", type=Loose)
    with pytest.raises(SchemaMismatchError, match="minimum 18"):
        store.topic("t", type=Tight)


def test_a_topic_without_a_type_can_be_given_one(store: Store) -> None:
    """Its contents may or may not fit: that is decided value by value."""
    store.topic("t").append(b'{"id": 1}')
    assert store.topic("t", type=Order).read_values() == [Order(1)]
    with pytest.raises(SchemaMismatchError, match="stored as json"):
        store.topic("t", type=str)


def test_the_encoding_is_for_good(store: Store) -> None:
    """It need not be given again, and cannot be another."""
    topic = store.topic("t", type=Order, encoding="msgpack")
    topic.append(Order(1))
    assert store.topic("t", type=Order).read_values() == [Order(1)]
    with pytest.raises(SchemaMismatchError, match="stored as msgpack"):
        store.topic("t", type=Order, encoding="json")
    assert msgspec.msgpack.decode(store.topic("t").read_values()[0] or b"")["id"] == 1


def test_types_survive_the_store(tmp_path: Path) -> None:
    """In the log, and in a snapshot."""
    for _ in range(2):
        with stratalog.open(tmp_path / "data", shards=1) as store:
            store.topic("t", type=Order).append(Order(1))
            store.snapshot()
    with stratalog.open(tmp_path / "data", shards=1) as store:
        assert store.topic("t").options.encoding == "json"
        assert store.topic("t", type=Order).read_values() == [Order(1)] * 2


def test_what_is_wrong_with_a_type_is_told(store: Store) -> None:
    """In the call, with what to do."""
    with pytest.raises(WrongTypeError, match="cannot be the type of values"):
        store.topic("t", type=object)
    with pytest.raises(OptionError, match="use one of json, msgpack"):
        store.topic("t", type=Order, encoding="xml")  # type: ignore[call-overload]
    with pytest.raises(OptionError, match="Give type"):
        store.topic("t", encoding="json")  # type: ignore[call-overload]
    with pytest.raises(OptionError, match="not for text"):
        store.topic("t", type=str, encoding="json")
    with pytest.raises(OptionError, match="Give type"):
        store.create_topic("t", schema="{}")  # type: ignore[call-overload]
    with pytest.raises(OptionError, match="Give type"):
        store.topic("t").alter(encoding="json")  # type: ignore[call-arg]
    store.series("s").write(1.0)
    with pytest.raises(WrongKindError, match="is a series"):
        store.topic("s", type=Order)


def test_a_topic_that_was_dropped_has_no_type_any_more(store: Store) -> None:
    """The next one of its name may have another."""
    store.topic("t", type=Order).append(Order(1))
    store.drop_topic("t")
    store.topic("t", type=str).append("text")
    assert store.topic("t", type=str).read_values() == ["text"]
