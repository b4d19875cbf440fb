"""Steps that are all tried, whatever becomes of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Self

from stratalog.log.topic import TopicLog


class Failures:
    """Steps that are all tried, whatever became of those before; the first failure is raised."""

    def __init__(self) -> None:
        self._first: Exception | None = None

    def collect(self, step: Callable[[], object], topic: TopicLog | None = None) -> None:
        """Take a step; what fails because its topic was dropped meanwhile has not failed."""
        try:
            step()
        # Whatever it is: also a mistake of ours in one topic must not keep the others from theirs.
        except Exception as error:
            if topic is None or not topic.is_dropped:
                self._first = self._first or error

    def collect_steps(self, steps: Iterable[Callable[[TopicLog], object]], topic: TopicLog) -> None:
        """Take several steps with a topic, as long as it is not dropped."""
        for step in steps:
            if not topic.is_dropped:
                self.collect(partial(step, topic), topic)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None and self._first is not None:
            raise self._first
