"""The catalog: which topics there are, by name, on top of what replay found by id."""

from __future__ import annotations

import difflib

from stratalog.errors import UnknownTopicError
from stratalog.log.topic import TopicLog
from stratalog.projections.replay import Replay


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
        """Take in topics that came or went since."""
        if self._generation != self._replay.generation:
            self._generation = self._replay.generation
            topics = list(self._replay.topics.values())
            self._by_name = {topic.name: topic for topic in topics if topic.version >= 0}

    def names(self) -> list[str]:
        """All topic names, sorted."""
        return sorted(self._by_name)

    def topics(self) -> list[TopicLog]:
        """All topics, by name."""
        by_name = self._by_name  # once: somebody may drop one meanwhile
        return [by_name[name] for name in sorted(by_name)]

    def get(self, name: str) -> TopicLog | None:
        """The topic of that name, if there is one."""
        return self._by_name.get(name)

    def find(self, name: str) -> TopicLog:
        """The topic of that name, or an error that helps."""
        topic = self._by_name.get(name)
        if topic is None:
            close = difflib.get_close_matches(name, self._by_name, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {len(self._by_name)}"
            raise UnknownTopicError(f"no topic {name!r} in this store: {hint}")
        return topic

    def new(self) -> TopicLog:
        """A topic with the next free id, not yet known by name."""
        return self._replay.new_topic()

    def add(self, topic: TopicLog) -> None:
        """Make a created topic known."""
        self._replay.topics[topic.id] = topic
        self._by_name = self._by_name | {topic.name: topic}

    def remove(self, topic: TopicLog) -> None:
        """Forget a topic that was dropped."""
        self._replay.drop(topic)
        self.refresh()
