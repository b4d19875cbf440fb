"""Everything at once: appenders, readers, a deleter, upkeep and views; the end is exact."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from tests.conftest import OpenStore
from tests.unit.segments.topics import upkeep

from stratalog import Gap, Record


@pytest.mark.slow
def test_everything_at_once(open_store: OpenStore) -> None:
    """Each appender's records are all there, in its order, but for those that were deleted."""
    store = open_store(
        shards=2, durability="disk", log_file_bytes=1 << 16, checkpoint_bytes=1 << 15,
        snapshot_bytes=1 << 16, rewrite_ratio=0.3,
    )  # fmt: skip
    topic = store.create_topic("t", segment_records=500)
    stop = threading.Event()
    wrong: list[BaseException] = []
    sent: list[dict[int, bytes]] = [{} for _ in range(4)]
    deleted: set[int] = set()
    counted = [0]

    def append(number: int) -> None:
        count = len(sent[number])
        data = b"%d:%d" % (number, count)
        if count % 7 == 0:
            batch = [Record(b"%d:%d" % (number, count + n), tag="batch") for n in range(3)]
            first, _ = topic.append_many(batch)
            sent[number].update({first + n: record.value or b"" for n, record in enumerate(batch)})
        else:
            sent[number][topic.append(data, tag="x" if count % 5 == 0 else None)] = data

    def read(is_view: bool) -> Callable[[], None]:
        source = open_store(read_only=True).topic("t") if is_view else topic

        def once() -> None:
            last = -1
            newest = [-1] * 4
            for item in source.read(max(0, source.next_offset - 3000)):
                assert isinstance(item, Record), item
                assert item.offset > last
                last = item.offset
                number, count = map(int, (item.value or b"").split(b":"))
                assert count > newest[number]
                newest[number] = count

        return once

    def delete() -> None:
        end = topic.next_offset
        if end < 100:
            return
        chosen = [n for n in range(max(0, end - 400), end) if n % 11 == 3]
        new = set(chosen) - deleted
        count = topic.delete(offsets=chosen)
        assert count == len(new)
        deleted.update(new)
        counted[0] += count
        time.sleep(0.002)

    def forever(action: Callable[[], None]) -> None:
        try:
            while not stop.is_set():
                action()
        except BaseException as error:
            wrong.append(error)
            stop.set()

    actions: list[Callable[[], None]] = [
        *(lambda number=number: append(number) for number in range(4)),
        read(False), read(False), read(True), delete, lambda: upkeep(store).round(),
    ]  # fmt: skip
    threads = [threading.Thread(target=forever, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    stop.wait(3)
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert store.stats().upkeep is None
    everything: dict[int, bytes] = {}
    for part in sent:
        assert not everything.keys() & part.keys()
        everything |= part
    assert sorted(everything) == list(range(topic.next_offset))
    living = {offset: data for offset, data in everything.items() if offset not in deleted}

    def found() -> dict[int, bytes | None]:
        items = list(store.topic("t").read())
        assert not any(isinstance(item, Gap) for item in items)
        return {item.offset: item.value for item in items if isinstance(item, Record)}

    assert found() == living
    store.compact()
    assert found() == living
    store.close()
    store = open_store(background=False)
    assert found() == living
