"""The journals of all processes of a run, and what a store must hold because of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import stratalog
from stratalog import Gap, Record
from stratalog.handles.store import Store
from tests.outsider.workload import id_of, key_of, tag_of

DENSE = ("log-0", "log-1", "log-2", "pair-0", "pair-1", "pair-2", "results")
"""Topics that nothing is ever deleted from: every offset is a record, or an explicit gap."""
TOPICS = (*DENSE, "state", "recent", "users")


class Acknowledged(NamedTuple):
    """An append that returned."""

    id: str
    durability: str
    run: int


@dataclass
class Promises:
    """Everything the processes were told, in all runs so far."""

    runs: int = 0
    tried: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    acknowledged: dict[str, dict[int, Acknowledged]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    deleting: set[str] = field(default_factory=set)
    """Users whose deletion raised, or was cut short: their records may be there or not."""
    deleted: dict[str, int] = field(default_factory=dict)
    """Users whose records below an offset are gone."""
    put_tried: set[str] = field(default_factory=set)
    put: dict[int, str] = field(default_factory=dict)
    delivered: dict[int, int] = field(default_factory=dict)
    """Messages, and how often each was delivered."""
    done: dict[int, int] = field(default_factory=dict)
    """Messages that were acknowledged, and the number of that delivery."""
    in_doubt: set[int] = field(default_factory=set)
    """Messages whose acknowledgement was cut short by the kill."""
    polled: set[int] = field(default_factory=set)
    """Records that the group acknowledged."""
    seen: dict[tuple[str, int], str] = field(default_factory=dict)
    """Records that a reader in another process saw."""
    copies: list[tuple[str, dict[str, int]]] = field(default_factory=list)
    """Backups, and per topic the newest offset that was durable before each was begun."""
    errors: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    kills: int = 0

    def take(self, path: Path) -> None:
        """Take in the journal of one process, which has ended."""
        self.runs += 1
        begun: dict[str, dict[str, int]] = {}
        tags: set[str] = set()
        # Counted: the holder of a lost lease may be told so while its successor acknowledges.
        in_flight: Counter[int] = Counter()
        lines = path.read_bytes().decode().splitlines()
        for line in lines:
            word, *rest = line.split(" ")
            if word == "try":
                self.tried[rest[0]].update(rest[1:])
            elif word == "ack":
                topic, durability, first, *ids = rest
                for offset, id in enumerate(ids, int(first)):
                    self._acknowledge(topic, offset, Acknowledged(id, durability, self.runs))
            elif word == "purge":
                tags.add(rest[1])
            elif word == "gone":
                tags.discard(rest[1])
                self.deleted[rest[1]] = max(self.deleted.get(rest[1], 0), int(rest[2]))
            elif word == "put-try":
                self.put_tried.update(rest)
            elif word == "put":
                self.put.update(enumerate(rest[1:], int(rest[0])))
            elif word == "got":
                self._deliver(int(rest[0]), int(rest[1]))
            elif word == "done-try":
                in_flight[int(rest[0])] += 1
            elif word == "done":
                in_flight[int(rest[0])] -= 1
                self.done[int(rest[0])] = self.delivered[int(rest[0])]
            elif word == "kept":
                in_flight[int(rest[0])] -= 1
            elif word == "poll":
                assert int(rest[0]) not in self.polled, f"record {rest[0]} came to the group again"
            elif word == "poll-done":
                self.polled.update(map(int, rest))
            elif word == "copy-try":
                begun[rest[0]] = self.durable()
            elif word == "copy":
                self.copies.append((rest[0], begun[rest[0]]))
            elif word == "error":
                self.errors[rest[0]] += 1
            else:
                assert word == "open", line
        self.deleting |= tags
        self.in_doubt |= (+in_flight).keys()

    def durable(self) -> dict[str, int]:
        """Per topic, the newest offset that was acknowledged as synced."""
        return {
            topic: max((o for o, one in found.items() if one.durability == "fsync"), default=-1)
            for topic, found in self.acknowledged.items()
        }

    def _acknowledge(self, topic: str, offset: int, one: Acknowledged) -> None:
        before = self.acknowledged[topic].get(offset)
        assert before is None or before.id == one.id, (
            f"offset {offset} of {topic} was given to {before} and to {one}"
        )
        self.acknowledged[topic][offset] = one

    def _deliver(self, offset: int, count: int) -> None:
        assert count <= self.done.get(offset, count), f"message {offset} was acknowledged, and back"
        self.delivered[offset] = max(self.delivered.get(offset, 0), count)

    # --- what a store must hold ------------------------------------------------------------

    def see(self, topic: str, record: Record) -> None:
        """Compare a record that any reader got with everything that is known of its offset."""
        id = id_of(record.value)
        assert id is not None, f"{topic} {record.offset} holds what was never appended"
        known = self.acknowledged[topic].get(record.offset)
        assert known is None or known.id == id, f"{topic} {record.offset} is {id}, was {known}"
        before = self.seen.setdefault((topic, record.offset), id)
        assert before == id, f"{topic} {record.offset} is {id}, and was seen as {before}"

    def check(self, store: Store) -> None:
        """Hold all topics of a store against the journals."""
        found = {topic: self._read(store, topic) for topic in TOPICS}
        for topic, (records, gaps) in found.items():
            self._check_topic(topic, records, gaps)
        pairs = [set(found[f"pair-{number}"][0].values()) for number in range(3)]
        assert pairs[0] == pairs[1] == pairs[2], "half of a batch"

    def _read(self, store: Store, topic: str) -> tuple[dict[int, str], list[Gap]]:
        records: dict[int, str] = {}
        gaps: list[Gap] = []
        expected = store.topic(topic).earliest if topic in DENSE else -1
        for item in store.topic(topic).read():
            if isinstance(item, Gap):
                gaps.append(item)
                assert expected in (-1, item.first), f"{topic} goes from {expected} to {item}"
                expected = -1 if expected < 0 else item.last + 1
                continue
            self.see(topic, item)
            assert expected in (-1, item.offset), f"{topic} goes from {expected} to {item.offset}"
            expected = -1 if expected < 0 else item.offset + 1
            records[item.offset] = id_of(item.value) or ""
        ids = set(records.values())
        assert len(ids) == len(records), f"a record of {topic} is there twice"
        assert ids <= self.tried[topic], f"{topic} has {ids - self.tried[topic]} from nowhere"
        return records, gaps

    def _check_topic(self, topic: str, records: dict[int, str], gaps: list[Gap]) -> None:
        newest = {key_of(id): offset for offset, id in sorted(records.items())}
        first = min(records, default=0)
        for offset, one in self.acknowledged[topic].items():
            if offset in records:
                is_right = topic != "users" or offset >= self.deleted.get(tag_of(one.id), 0)
                assert is_right, f"deleted record {offset} of users is back"
            elif topic == "users":
                tag = tag_of(one.id)
                is_right = tag in self.deleting or offset < self.deleted.get(tag, 0)
                assert is_right, f"record {offset} of users, {one}, is gone"
            elif topic == "state":
                assert newest.get(key_of(one.id), -1) > offset, f"key of {one} at {offset} is gone"
            elif topic == "recent":
                # Upkeep may evict while this is read: as a gap in the middle.
                is_told = any(gap.first <= offset <= gap.last for gap in gaps)
                assert is_told or offset < first, f"record {offset} of recent is gone"
            else:
                # A kill or a full disk may take records of a class below fsync: as a gap, or
                # from the very end, where the next writer makes one of it.
                is_told = any(gap.first <= offset <= gap.last for gap in gaps)
                is_told = is_told or offset > max(records, default=-1)
                is_right = one.durability != "fsync" and is_told
                assert is_right, f"record {offset} of {topic}, {one}, is gone"
        if topic in DENSE:
            for gap in gaps:
                lost = range(gap.first, gap.last + 1)
                assert not set(lost) & set(records), f"{topic} has records in {gap}"

    def check_copy(self, path: str, durable: dict[str, int], cold: str) -> None:
        """Hold a backup against what was durable before it was begun."""
        with stratalog.open(path, read_only=True, cold=cold) as copy:
            for topic in DENSE:
                records, _ = self._read(copy, topic)
                for offset, one in self.acknowledged[topic].items():
                    if one.durability == "fsync" and offset <= durable.get(topic, -1):
                        assert records.get(offset) == one.id, f"{topic} {offset} is not in {path}"

    def check_queue(self, store: Store) -> int:
        """Drain the queue, and hold it against the journals; returns how many were left."""
        queue = store.queue("jobs")
        left: dict[int, str] = {}
        while found := queue.get_many(1000, timeout=2.0):
            for message in found:
                id = id_of(message.value)
                assert id in self.put_tried, f"message {message.offset} from nowhere"
                left[message.offset] = id or ""
            queue.ack(*found)
        assert len(queue) == 0
        assert not left.keys() & self.done.keys(), "acknowledged, and back"
        lost = self.put.keys() - left.keys() - self.done.keys() - self.in_doubt
        assert not lost, f"messages {sorted(lost)} were put, and are lost"
        return len(left)
