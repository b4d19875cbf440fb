"""Watching a table beside a thread that writes to it: nothing is lost and nothing comes twice."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

import stratalog
from stratalog import CaughtUp
from stratalog.handles import table_watch
from stratalog.model import Operation

ROUNDS = 150
WATCHERS = 3
CHANGES = 25
KEYS = [f"k{number}" for number in range(20)]


def test_a_snapshot_and_its_changes_are_all_there_is_beside_a_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries, CaughtUp, and every version after it once and in order: they come to the table.

    Pages are small and readers slow, so that the writer gets in between; checkpoints move records.
    """
    monkeypatch.setattr(table_watch, "_PAGE_KEYS", 3)
    problems: list[BaseException] = []
    has_begun, is_done = threading.Event(), threading.Event()
    with stratalog.open(tmp_path, durability="memory") as store:
        table = store.table("t", versions=64, segment_records=200)
        table.put_many(dict.fromkeys(KEYS, b"first"))

        def write() -> None:
            for turn in range(ROUNDS):
                table.put(KEYS[turn % 20], b"%d" % turn)
                table.put_many({KEYS[turn * 7 % 20]: b"x%d" % turn, KEYS[turn * 3 % 20]: b"y"})
                table.delete(KEYS[turn * 11 % 20])
                if turn % 50 == 25:
                    store.checkpoint()
                has_begun.set()
                time.sleep(0.002)  # long enough that watches begin and end meanwhile
            table.put("end", b"")
            is_done.set()

        def watch() -> None:
            has_begun.wait(30)
            while True:
                was_done = is_done.is_set()
                follow(table)
                if was_done:
                    return

        def guard(action: object) -> None:
            try:
                action()  # type: ignore[operator]
            except BaseException as error:
                problems.append(error)
                is_done.set()

        threads = [threading.Thread(target=guard, args=(write,))]
        threads += [threading.Thread(target=guard, args=(watch,)) for _ in range(WATCHERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        if problems:
            raise problems[0]


def follow(table: stratalog.Table) -> None:
    """Watch from a snapshot on for some changes, and hold it against the table as of the last."""
    content: dict[str | bytes, bytes | None] = {}
    caught_up = newest = -1
    expected = 0
    for item in table.watch(start="snapshot", timeout=20.0):
        if isinstance(item, CaughtUp):
            assert caught_up == -1, "caught up twice"
            assert newest <= item.version, "an entry that comes again as a change"
            caught_up, expected = item.version, item.version + 1
        elif caught_up < 0:
            assert item.key not in content, "an entry came twice"
            content[item.key] = item.value
            newest = max(newest, item.version)
            time.sleep(0.0005)  # a slow reader, so that entries change while they are given
        else:
            assert item.version == expected, "a change is lost, or comes twice"
            expected += 1
            if item.operation == Operation.DELETE:
                assert content.pop(item.key, None) is not None, "a deletion of what never came"
            else:
                content[item.key] = item.value
        if caught_up >= 0 and ("end" in content or expected > caught_up + CHANGES):
            break
    at = expected - 1
    known = {key: table.get(key, at=at) for key in [*KEYS, "end"]}
    assert content == {key: value for key, value in known.items() if value is not None}
