"""The catalog: topics by name, on top of what recovery found by id."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from stratalog.errors import UnknownTopicError
from stratalog.log.topic import TopicLog
from stratalog.state.recovery import Replay

# So many names are said when one is not there.
_NAMES_MAX = 8


class Catalog:
    """Topics by name.

    Concurrency: a dictionary that is replaced, never changed; the store serialises creation.
    """

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._by_name: dict[str, TopicLog] = {}
        self._generation = -1
        self.refresh()

    def refresh(self) -> None:
        """Take in topics that were created or dropped since."""
        if self._generation != self._replay.generation:
            self._generation = self._replay.generation
            # Of two topics with one name, the newer one counts: the creation of the other raised,
            # and a crash left its frame all the same.
            topics = sorted(self._replay.topics.values(), key=lambda topic: topic.id)
            self._by_name = {topic.name: topic for topic in topics if topic.version >= 0}

    def names(self) -> list[str]:
        """List all topic names, sorted."""
        return sorted(self._by_name)

    def topics(self) -> list[TopicLog]:
        """List all topics, ordered by name."""
        by_name = self._by_name  # read once: another thread may drop a topic meanwhile
        return [by_name[name] for name in sorted(by_name)]

    def get(self, name: str) -> TopicLog | None:
        """Return the topic of that name, if there is one."""
        return self._by_name.get(name)

    def find(self, name: str) -> TopicLog:
        """Return the topic of that name; the error of a missing one suggests another."""
        topic = self._by_name.get(name)
        if topic is None:
            raise unknown("topic", name, self._by_name)
        return topic

    def new(self) -> TopicLog:
        """Create a topic with the next free id, not yet registered by name."""
        return self._replay.new_topic()

    def add(self, topic: TopicLog) -> None:
        """Register a created topic."""
        self._replay.topics[topic.id] = topic
        self._by_name = self._by_name | {topic.name: topic}

    def remove(self, topic: TopicLog) -> None:
        """Unregister a topic that was dropped."""
        self._replay.drop(topic)
        self.refresh()


def unknown(kind: str, name: str, names: Iterable[str]) -> UnknownTopicError:
    """Build the error of a name that is not there; it says which ones are."""
    found = sorted(names)
    close = difflib.get_close_matches(name, found, n=1)
    if close:
        hint = f"Did you mean {close[0]!r}?"
    elif not found:
        hint = f"It has no {kind}s yet."
    elif len(found) <= _NAMES_MAX:
        hint = f"It has {', '.join(map(repr, found))}."
    else:
        hint = f"It has {len(found)} others; store.{kind}s() lists them."
    return UnknownTopicError(f"There is no {kind} {name!r} in this store. {hint}")
