"""What becomes of appends whose write has failed, and what is raised, there and then and later."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stratalog.errors import DiskFullError, PoisonedError, StratalogError
from stratalog.log.group import Group, Pending

if TYPE_CHECKING:
    from stratalog.log.shard import Shard
    from stratalog.log.topic import TopicLog


def again(error: StratalogError) -> StratalogError:
    """A copy to raise: one exception raised in many threads would mix up their tracebacks."""
    copy = type(error)(*error.args)
    copy.__cause__ = error.__cause__
    return copy


def poisoned(directory: str, error: StratalogError) -> PoisonedError:
    """Why a shard takes nothing more."""
    return PoisonedError(
        f"{directory} takes no more appends since a write failed: {error} "
        "Close the store and open it again: it recovers everything acknowledged."
    )


def fail(shard: Shard, group: Group, error: StratalogError) -> None:
    """Nothing of a group, nor of the one behind it, is in the log; the commit lock is held.

    May be repeated, and has to be if it was interrupted: what has failed is not tried again.
    """
    if group.done:
        return
    group.failure = error
    is_clean = False
    if isinstance(error, DiskFullError):
        with contextlib.suppress(OSError):  # as after any other failure, nothing is certain
            shard.files.cut()
            is_clean = True
    with shard.lock:
        if not is_clean:
            shard.refusal = poisoned(shard.files.directory, error)
        if shard.group is not group:
            group.behind = [*group.behind, shard.group]
        shard.close_group()
        _give_back(shard, (group, *group.behind), error)
    for one in (*group.behind, group):
        shard.settle_group(one, error)


def fail_behind(
    shard: Shard,
    behind: list[Group],
    error: StratalogError,
    topics: Sequence[TopicLog],
    is_clean: bool,
) -> None:
    """Give back the offsets that topics gave to a group of another shard, and all since.

    Unless nothing is left of what had them (`is_clean`), nobody else gets them either. Groups that
    fail with it are added to `behind`, so that it may be repeated; the commit lock is held.
    """
    with shard.lock:
        if not is_clean and shard.refusal is None:
            shard.refusal = poisoned(shard.files.directory, error)
        behind += [shard.group]
        shard.close_group()
        _give_back(shard, behind, error)
        for topic in topics:
            topic.give_back()
    for one in behind:
        shard.settle_group(one, error)


def _give_back(shard: Shard, groups: Sequence[Group], error: StratalogError) -> None:
    """Forget the offsets of what is not in the log; called with the shard's lock held."""
    shard.in_flight = None
    for group in groups:
        for entry in (group.encoded or group.entries)[group.published :]:
            for topic in entry.topics:
                if topic.shard is shard:
                    topic.give_back()
            if not isinstance(entry, Pending) and entry.on_fail is not None:
                entry.on_fail()
        if group.is_acknowledged:
            shard.lost = error
