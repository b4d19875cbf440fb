"""Routes: every record once, in order, and nothing that goes wrong in silence."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.crash.model import kill, open_store

import stratalog
from stratalog import (
    ClosedError,
    Durability,
    OptionError,
    ReadOnlyError,
    Record,
    Store,
    UnknownRouteError,
    WrongKindError,
    WrongTypeError,
)
from stratalog.handles.route import Route
from stratalog.testing import FakeDisk, ManualClock

WAIT = 30.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store with its background threads."""
    with stratalog.open(tmp_path / "store", durability="disk", shards=2) as store:
        yield store


def values(store: Store, name: str) -> list[bytes | None]:
    """All payloads of a topic."""
    return store.topic(name).read_values()


def records(store: Store, name: str, start: int = 0) -> list[Record]:
    """All records of a topic."""
    return [item for item in store.topic(name).read(start) if isinstance(item, Record)]


def test_every_record_comes_once_and_in_order(store: Store) -> None:
    """Those that were there before, and those that come while it forwards."""
    orders = store.topic("orders")
    orders.append_many([b"%d" % n for n in range(1000)])
    route = store.route("orders", "copy")
    for number in range(1000, 3000):
        orders.append(b"%d" % number)
    assert route.wait(WAIT)
    assert values(store, "copy") == [b"%d" % n for n in range(3000)]
    assert (route.lag, route.error, route.stats().forwarded) == (0, None, 3000)


def test_a_record_is_forwarded_with_all_it_has(store: Store) -> None:
    """Time, key, headers, tag, node, priority, expiry, delay and operation; the offset is new."""
    first = Record(
        b"v", b"k", {"h": b"1"}, "tag", "node", time.time_ns() - 10**9, priority=7,
        expires_at=time.time_ns() + 10**13, not_before=time.time_ns(), operation=1,
    )  # fmt: skip
    store.topic("copy").append(b"before", timestamp=1000.0)
    given = [first, Record(None, b""), Record(b"", tag="only a tag")]
    store.topic("orders").append_many(given)
    assert store.route("orders", "copy").wait(WAIT)
    sent = records(store, "orders")
    got = records(store, "copy", 1)
    assert [record.offset for record in got] == [1, 2, 3]
    for one, other in zip(sent, got, strict=True):
        for field in ("value", "key", "headers", "tag", "node", "timestamp", "priority",
                      "expires_at", "not_before", "operation"):  # fmt: skip
            assert getattr(one, field) == getattr(other, field), field


def test_time_does_not_go_back_in_the_destination(store: Store) -> None:
    """A record that is older than the newest one there gets that one's time."""
    store.topic("copy").append(b"new", timestamp=2_000_000_000.0)
    store.topic("orders").append(b"old", timestamp=1_000_000_000.0)
    assert store.route("orders", "copy").wait(WAIT)
    assert [r.timestamp for r in records(store, "copy")] == [2 * 10**18] * 2


CONDITIONS: list[tuple[dict[str, Any], Any]] = [
    ({}, lambda r: True),
    ({"tag_glob": "eu-*"}, lambda r: r.tag is not None and r.tag.startswith("eu-")),
    ({"tag_glob": "?u-[12]"}, lambda r: r.tag in ("eu-1", "eu-2")),
    ({"key_prefix": b"a"}, lambda r: r.key is not None and r.key.startswith(b"a")),
    ({"key_prefix": "ab"}, lambda r: r.key is not None and r.key.startswith(b"ab")),
    ({"key_prefix": b""}, lambda r: r.key is not None),
    ({"node": "n1"}, lambda r: r.node == "n1"),
    (
        {"tag_glob": "eu-*", "key_prefix": b"a", "node": "n1"},
        lambda r: r.node == "n1" and (r.key or b"")[:1] == b"a" and (r.tag or "")[:3] == "eu-",
    ),
    ({"tag_glob": "nothing"}, lambda r: False),
]


@pytest.mark.parametrize(("conditions", "meant"), CONDITIONS, ids=[str(c) for c, _ in CONDITIONS])
@pytest.mark.parametrize("upkeep", ["none", "checkpoint"])
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_conditions_choose_what_is_forwarded(
    store: Store, conditions: dict[str, Any], meant: Any, upkeep: str, compression: str
) -> None:
    """By tag, key and node together, from the log and from segments, batch or single."""
    store.create_topic("copy", compression=compression)
    orders = store.topic("orders")
    every: list[Record] = [
        Record(b"%d" % n, key, {"n": b"%d" % n} if n % 5 == 0 else {}, tag, node)
        for n, (key, tag, node) in enumerate(
            (key, tag, node)
            for key in (None, b"", b"a", b"abc", b"b")
            for tag in (None, "eu-1", "eu-9", "us-1", "xeu-")
            for node in (None, "n1", "n2")
        )
    ]
    orders.append_many(every[:40])
    for record in every[40:60]:
        orders.append(
            record.value, key=record.key, headers=record.headers, tag=record.tag, node=record.node
        )
    orders.append_many([b"plain"] * 10)
    orders.append_many(every[60:])
    if upkeep == "checkpoint":
        store.checkpoint()
    route = store.route("orders", "copy", **conditions)
    assert route.wait(WAIT)
    expected = [record for record in records(store, "orders") if meant(record)]
    found = records(store, "copy")
    assert [(r.value, r.key, r.headers, r.tag, r.node, r.timestamp) for r in found] == [
        (r.value, r.key, r.headers, r.tag, r.node, r.timestamp) for r in expected
    ]
    assert route.lag == 0


def test_chains_and_forks(store: Store) -> None:
    """A destination may be a source, and a source may have many routes."""
    routes = [store.route(a, b) for a, b in [("a", "b"), ("b", "c"), ("a", "d"), ("c", "e")]]
    store.topic("a").append_many([b"1", b"2", b"3"])
    for route in routes:
        assert route.wait(WAIT)
    for name in "abcde":
        assert values(store, name) == [b"1", b"2", b"3"]


def test_two_routes_into_one_topic_interleave(store: Store) -> None:
    """Each in its own order, and all of it once."""
    for name in ("a", "b"):
        store.topic(name).append_many([b"%s%d" % (name.encode(), n) for n in range(500)])
    for route in [store.route("a", "all"), store.route("b", "all")]:
        assert route.wait(WAIT)
    found = values(store, "all")
    for prefix in (b"a", b"b"):
        mine = [value for value in found if value and value[:1] == prefix]
        assert mine == [prefix + b"%d" % n for n in range(500)]


@pytest.mark.parametrize("pair", [("a", "a"), ("b", "a"), ("c", "a"), ("c", "b")])
def test_a_cycle_is_refused(store: Store, pair: tuple[str, str]) -> None:
    """Cycles of one topic, of two and of three; nothing is made."""
    store.route("a", "b")
    store.route("b", "c")
    with pytest.raises(OptionError, match=r"for ever"):
        store.route(*pair)
    assert len(store.routes()) == 2


def test_nodes_make_a_cycle_safe(store: Store) -> None:
    """Two places exchange what each has appended: both have everything once."""
    there = store.route("eu", "us", node="eu-1")
    back = store.route("us", "eu", node="us-1")
    for number in range(20):
        store.topic("eu").append(b"eu %d" % number, node="eu-1")
        store.topic("us").append(b"us %d" % number, node="us-1")
    for _ in range(3):
        assert there.wait(WAIT)
        assert back.wait(WAIT)
    for name in ("eu", "us"):
        assert len(values(store, name)) == 40
        assert len(set(values(store, name))) == 40


@pytest.mark.parametrize(
    ("made", "wanted", "is_safe"),
    [
        ([("a", "b", "1")], ("b", "a", "1"), False),
        ([("a", "b", "1")], ("b", "a", None), False),
        ([("a", "b", None)], ("b", "a", "1"), False),
        ([("a", "b", "1"), ("b", "c", None)], ("c", "a", "1"), False),
        ([("a", "b", "1"), ("b", "c", None)], ("c", "a", "2"), True),
        ([("a", "b", "1"), ("b", "c", "2")], ("c", "a", None), True),
        ([("a", "b", "1"), ("b", "c", "2"), ("a", "c", "2")], ("c", "a", None), False),
        ([("a", "b", "1"), ("b", "c", "2")], ("c", "b", "1"), True),
    ],
)
def test_a_cycle_is_judged_by_the_nodes_on_it(
    store: Store, made: list[tuple[str, str, str | None]],
    wanted: tuple[str, str, str | None], is_safe: bool,
) -> None:  # fmt: skip
    """It is safe if no node's records can go all the way round."""
    for source, destination, node in made:
        store.route(source, destination, node=node)
    if is_safe:
        store.route(*wanted[:2], node=wanted[2])
    else:
        with pytest.raises(OptionError, match="cycle"):
            store.route(*wanted[:2], node=wanted[2])


def test_a_paused_route_forwards_nothing_and_goes_on_when_resumed(store: Store) -> None:
    """Its lag grows meanwhile, and it stays paused over a reopen."""
    route = store.route("a", "b")
    store.topic("a").append(b"1")
    assert route.wait(WAIT)
    route.pause()
    store.topic("a").append_many([b"2", b"3"])
    assert not route.wait(0.05)
    assert (route.lag, route.is_paused, route.stats().state) == (2, True, "paused")
    path = store.path
    store.close()
    with stratalog.open(path) as again:
        (route,) = again.routes()
        assert route.is_paused
        assert not route.wait(0.05)
        assert values(again, "b") == [b"1"]
        route.resume()
        assert route.wait(WAIT)
        assert values(again, "b") == [b"1", b"2", b"3"]


def test_nothing_is_forwarded_once_pause_has_returned(store: Store) -> None:
    """Beside a writer that never stops."""
    route = store.route("a", "b")
    stop = threading.Event()

    def fill() -> None:
        while not stop.is_set():
            store.topic("a").append_many([b"x"] * 50, durability="fsync")

    writer = threading.Thread(target=fill)
    writer.start()
    try:
        for _ in range(10):
            route.resume()
            time.sleep(0.02)
            route.pause()
            before = store.topic("b").next_offset
            time.sleep(0.02)
            assert store.topic("b").next_offset == before
    finally:
        stop.set()
        writer.join()
    route.resume()
    assert route.wait(WAIT)
    assert len(store.topic("b")) == len(store.topic("a"))


def test_a_dropped_route_is_gone_and_both_topics_stay(store: Store) -> None:
    """The handle says so, and one between the same topics begins anew."""
    route = store.route("a", "b")
    store.topic("a").append(b"1")
    assert route.wait(WAIT)
    route.drop()
    assert route.is_dropped
    assert store.routes() == []
    store.topic("a").append(b"2")
    for action in (lambda: route.lag, route.pause, route.resume, route.drop, route.stats,
                   route.wait, lambda: route.error, lambda: route.is_paused):  # fmt: skip
        with pytest.raises(UnknownRouteError, match="was dropped"):
            action()
    assert values(store, "b") == [b"1"]
    assert store.route("a", "b").wait(WAIT)
    assert values(store, "b") == [b"1", b"1", b"2"]


def test_asking_again_returns_the_route_that_is_there(store: Store) -> None:
    """With other conditions it is an error, which names those of the first."""
    route = store.route("a", "b", tag_glob="x*")
    assert store.route("a", "b", tag_glob="x*") == route
    assert store.routes() == [route]
    assert len({route, *store.routes()}) == 1
    with pytest.raises(OptionError, match=r"tag_glob='x\*'"):
        store.route("a", "b")


@pytest.mark.parametrize("which", ["a", "b"])
def test_a_dropped_topic_is_an_error_that_can_be_seen(store: Store, which: str) -> None:
    """In the route and in the stats, also after a reopen; the other routes go on."""
    route = store.route("a", "b")
    other = store.route("x", "y")
    store.topic("a").append(b"1")
    assert route.wait(WAIT)
    store.drop_topic(which)
    store.topic(which).append(b"a successor")
    store.topic("a").append(b"2")
    store.topic("x").append(b"1")
    assert other.wait(WAIT)
    assert not route.wait(WAIT)
    assert route.stats().state == "failed"
    assert f"Topic {which!r}" in str(route.error)
    assert list(store.stats().failed_routes) == ["a -> b"]
    path = store.path
    store.close()
    for read_only in (True, False):
        with stratalog.open(path, read_only=read_only) as again:
            found, fine = again.routes()
            assert "was dropped" in str(found.error)
            assert fine.error is None
            assert list(again.stats().failed_routes) == ["a -> b"]
    with stratalog.open(path) as again:
        again.routes()[0].drop()
        assert again.stats().failed_routes == {}
        assert again.route("a", "b").wait(WAIT)


def test_what_fails_is_tried_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread goes on, the failure can be seen until it passes, and nothing comes twice."""
    from stratalog.segments import choose as records_of
    from stratalog.upkeep import routes as module

    monkeypatch.setattr(module, "_RETRY_SECONDS", 0.05)
    route, other = store.route("a", "b"), store.route("x", "y")
    is_broken = True
    choose = records_of.choose

    def fail(slices: Any, choice: Any) -> Any:
        if is_broken and any(one.batch.values()[0] == b"1" for one in slices):
            raise OSError(5, "the disk is on fire")
        return choose(slices, choice)

    monkeypatch.setattr(module, "choose", fail)
    store.topic("a").append_many([b"1", b"2"], durability="fsync")
    store.topic("x").append(b"3", durability="fsync")
    assert other.wait(WAIT)
    deadline = time.monotonic() + WAIT
    while route.error is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "on fire" in str(route.error)
    assert "on fire" in store.stats().failed_routes["a -> b"]
    is_broken = False
    assert route.wait(WAIT)
    deadline = time.monotonic() + WAIT
    while route.error is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (route.error, values(store, "b")) == (None, [b"1", b"2"])


def test_a_gap_of_the_source_is_counted_and_passed(tmp_path: Path) -> None:
    """Records that retention took before they were forwarded; those deleted are not missed."""
    disk, clock = FakeDisk(), ManualClock()
    store = open_store(disk, clock)
    store.create_topic("a", segment_records=10, retention_records=20)
    route = store.route("a", "b")
    for _ in range(10):
        store.topic("a").append_many([b"x"] * 10)
    store.topic("a").delete(offsets=[95])
    store.compact()
    earliest = store.topic("a").earliest
    assert earliest >= 60
    assert route.wait(0)
    stats = route.stats()
    assert (stats.missed, stats.forwarded, stats.lag) == (earliest, 99 - earliest, 0)
    kill(store)
    store = open_store(disk.crash(0, damage="drop"), clock)
    assert store.routes()[0].stats().missed == earliest
    kill(store)


def test_consumed_retention_waits_for_routes() -> None:
    """Records that a route has yet to forward are not evicted; a route to nowhere holds none."""
    disk, clock = FakeDisk(), ManualClock()
    store = open_store(disk, clock)
    store.create_topic("a", segment_records=10, retention="consumed", retention_records=0)
    route = store.route("a", "b")
    route.pause()
    group = store.topic("a").group("g")
    store.topic("a").append_many([b"x"] * 40)
    group.ack(group.poll("c", limit=100))
    store.compact()
    assert store.topic("a").earliest == 0
    store.drop_topic("b")
    store.compact()
    assert store.topic("a").earliest > 0
    kill(store)


def test_only_synced_records_are_forwarded() -> None:
    """A crash of the machine leaves nothing in a destination that its source has lost."""
    disk, clock = FakeDisk(), ManualClock()
    store = open_store(disk, clock, durability="disk", shards=2)
    store.create_topic("b", durability="fsync")
    route = store.route("a", "b")
    store.topic("a").append_many([b"safe"] * 3, durability="fsync")
    assert store._upkeep is not None
    store._upkeep.forwarder.run()
    store.topic("a").append_many([b"unsafe"] * 3)
    assert len(values(store, "a")) == 6  # written by this, and not synced
    store._upkeep.forwarder.run()
    assert values(store, "b") == [b"safe"] * 3
    assert route.lag == 3
    kill(store)
    after = open_store(disk.crash(0, damage="drop"), clock, durability="disk", shards=2)
    assert values(after, "a")[:3] == [b"safe"] * 3
    assert values(after, "b") == [b"safe"] * 3
    after.topic("a").append(b"next", durability="fsync")
    assert after.routes()[0].wait(0)
    assert values(after, "b") == [b"safe"] * 3 + [b"next"]
    kill(after)


def test_a_new_route_begins_where_it_is_told(store: Store) -> None:
    """With the oldest record, with those to come, or at an offset."""
    store.topic("a").append_many([b"%d" % n for n in range(5)])
    for name, start in (("first", "earliest"), ("last", "latest"), ("third", 3)):
        store.route("a", name, start=start)
    store.topic("a").append(b"5")
    for route in store.routes():
        assert route.wait(WAIT)
    assert values(store, "first") == [b"%d" % n for n in range(6)]
    assert values(store, "last") == [b"5"]
    assert values(store, "third") == [b"3", b"4", b"5"]
    with pytest.raises(OptionError, match="after the end"):
        store.route("a", "beyond", start=7)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"tag_glob": b"x"}, WrongTypeError),
        ({"tag_glob": 7}, WrongTypeError),
        ({"key_prefix": 7}, WrongTypeError),
        ({"node": b"n"}, WrongTypeError),
        ({"node": "\ud800"}, OptionError),
        ({"start": -1}, OptionError),
        ({"start": "middle"}, WrongTypeError),
        ({"start": None}, WrongTypeError),
        ({"destination": ""}, OptionError),
        ({"destination": None}, WrongTypeError),
        ({"source": 3}, WrongTypeError),
    ],
    ids=str,
)
def test_bad_arguments_are_refused(store: Store, given: dict[str, Any], error: Any) -> None:
    """Each with its own error, and nothing is made."""
    with pytest.raises(error):
        store.route(**({"source": "a", "destination": "b"} | given))
    assert store.routes() == []


def test_routes_lead_from_anything_that_is_logged_to_topics(store: Store) -> None:
    """A queue can be a source, not a destination; an ephemeral topic neither."""
    store.queue("jobs").put(b"job", priority=3)
    store.create_topic("ticks", durability="ephemeral")
    assert store.route("jobs", "audit").wait(WAIT)
    assert values(store, "audit") == [b"job"]
    with pytest.raises(WrongKindError, match="routes lead to topics"):
        store.route("audit", "jobs")
    for pair in (("ticks", "audit"), ("audit", "ticks")):
        with pytest.raises(OptionError, match="ephemeral"):
            store.route(*pair)


def test_a_view_sees_routes_and_changes_none(store: Store) -> None:
    """Their lag as the log has it, beside the writer."""
    route = store.route("a", "b", tag_glob="x", key_prefix=b"y", node="z")
    with stratalog.open(store.path, read_only=True) as view:
        (found,) = view.routes()
        assert (found.source, found.destination) == ("a", "b")
        assert (found.tag_glob, found.key_prefix, found.node) == ("x", b"y", "z")
        store.topic("a").append(b"1", tag="x", key=b"yy", node="z")
        assert route.wait(WAIT)
        deadline = time.monotonic() + WAIT
        while found.stats().forwarded != 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert (found.lag, found.stats().forwarded) == (0, 1)
        for action in (found.pause, found.resume, found.drop, found.wait):
            with pytest.raises(ReadOnlyError):
                action()
        with pytest.raises(ReadOnlyError):
            view.route("a", "c")
        route.drop()
        assert view.routes() == []
        with pytest.raises(UnknownRouteError):
            found.lag  # noqa: B018


def test_a_closed_store_says_so(store: Store) -> None:
    """Whatever is asked of a route of it."""
    route = store.route("a", "b")
    store.close()
    for action in (route.pause, route.stats, route.wait, store.routes):
        with pytest.raises(ClosedError):
            action()


def test_one_who_waits_is_told_when_the_store_closes(store: Store) -> None:
    """Instead of waiting for ever."""
    route = store.route("a", "b")
    route.pause()
    store.topic("a").append(b"1")
    seen: list[BaseException] = []

    def wait() -> None:
        try:
            route.wait()
        except ClosedError as error:
            seen.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    time.sleep(0.05)
    store.close()
    waiter.join(WAIT)
    assert len(seen) == 1


def test_records_as_large_as_can_be_are_forwarded() -> None:
    """Alone in a frame, also where a batch with its cursor would not fit into one."""
    disk, clock = FakeDisk(), ManualClock()
    store = open_store(disk, clock, shards=1)
    limit = store.topic("a").log.batch_bytes_max
    sizes = [limit - 256, 10, limit // 2, limit // 2, limit // 2 - 40, 0, limit - 256]
    for number, size in enumerate(sizes):
        store.topic("a").append(bytes([number]) * size)
    small = [Record(bytes([n]) * 100, headers={"h" * 50: bytes(60)}) for n in range(20)]
    store.topic("a").append_many(small)
    route = store.route("a", "b")
    assert route.wait(0)
    assert values(store, "b") == values(store, "a")
    kill(store)
    store = open_store(disk.crash(0, damage="drop"), clock, shards=1)
    assert values(store, "b") == values(store, "a")
    kill(store)


@pytest.mark.parametrize("durability", [Durability.MEMORY, Durability.DISK, Durability.FSYNC])
def test_a_full_disk_holds_a_route_up_and_takes_nothing(durability: Durability) -> None:
    """It goes on where it was once there is space."""
    import errno

    from stratalog.testing import Fault, FaultFs

    disk, clock = FakeDisk(), ManualClock()
    faults = FaultFs(disk)
    store = open_store(faults, clock, shards=1)
    store.create_topic("b", durability=durability)
    route = store.route("a", "b")
    store.topic("a").append_many([b"%d" % n for n in range(5)])
    fault = Fault(operation="pwrite", error=errno.ENOSPC, path_contains=".log", always=True)
    faults.add(fault)
    assert store._upkeep is not None
    store._upkeep.forwarder.run()
    assert "space" in str(route.error)
    assert route.stats().forwarded == 0
    faults.clear()
    store._upkeep.forwarder.run()
    assert route.error is None
    assert values(store, "b") == [b"%d" % n for n in range(5)]
    kill(store)


def test_a_route_over_records_that_do_not_match_moves_its_cursor(tmp_path: Path) -> None:
    """So that a crash has not to read them all again."""
    disk, clock = FakeDisk(), ManualClock()
    store = open_store(disk, clock)
    route = store.route("a", "b", tag_glob="x")
    store.topic("a").append_many([b"1"] * 50)
    assert route.wait(0)
    kill(store)
    after = open_store(disk.crash(0, damage="drop"), clock)
    (route,) = after.routes()
    assert (route.stats().cursor, route.lag, values(after, "b")) == (50, 0, [])
    kill(after)


def test_a_backup_has_the_routes(store: Store, tmp_path: Path) -> None:
    """And goes on with them where the copy was made."""
    route = store.route("a", "b")
    store.topic("a").append_many([b"1", b"2"])
    assert route.wait(WAIT)
    store.backup(tmp_path / "copy")
    store.topic("a").append(b"3")
    with stratalog.open(tmp_path / "copy") as copy:
        copy.topic("a").append(b"other")
        assert copy.routes()[0].wait(WAIT)
        assert values(copy, "b") == [b"1", b"2", b"other"]


def test_the_thread_comes_with_the_first_route(tmp_path: Path) -> None:
    """A store without routes has no thread for them."""

    def has_thread() -> bool:
        return any(thread.name == "stratalog-routes" for thread in threading.enumerate())

    with stratalog.open(tmp_path / "store") as store:
        store.topic("a").append(b"1")
        assert not has_thread()
        store.route("a", "b")
        assert has_thread()
    assert not has_thread()
    with stratalog.open(tmp_path / "store"):
        assert has_thread()


def test_handles_print_what_they_are(store: Store) -> None:
    """Source and destination."""
    assert repr(store.route("a", "b")) == "<stratalog.Route 'a' -> 'b'>"
    assert isinstance(store.routes()[0], Route)
