"""Failed commits: what happens to their appends, and the errors that are raised now and later."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stratalog.errors import (
    DiskFullError,
    FencedError,
    OutOfMemoryError,
    PoisonedError,
    StratalogError,
    TooManyFilesError,
)
from stratalog.log.commit_group import Group, Pending

if TYPE_CHECKING:
    from stratalog.log.shard import Shard
    from stratalog.log.topic import TopicLog

RETRIABLE_ERRORS = (DiskFullError, TooManyFilesError, OutOfMemoryError)
"""Errors after which the log, once cut to its old end, has no trace: the append may be retried."""


def again(error: StratalogError) -> StratalogError:
    """Copy an error to raise it: one exception raised in many threads mixes up tracebacks."""
    copy = type(error)(*error.args)
    copy.__cause__ = error.__cause__
    return copy


def poisoned(directory: str, error: StratalogError) -> PoisonedError:
    """Build the error of a shard that accepts nothing more."""
    return PoisonedError(
        f"{directory} takes no more appends since a write failed: {error} "
        "Close the store and open it again: it recovers everything acknowledged."
    )


def fail(shard: Shard, group: Group, error: StratalogError) -> None:
    """Fail a group and the open one after it, neither of which is in the log.

    The commit lock is held. Idempotent, and repeated if interrupted: a failure is not retried.
    """
    if group.done:
        return
    group.failure = error
    is_clean = False
    if isinstance(error, RETRIABLE_ERRORS):
        with contextlib.suppress(OSError):  # the state of the file is unknown anyway
            shard.files.cut()
            is_clean = True
    with shard.lock:
        if not is_clean:
            is_fenced = isinstance(error, FencedError)
            shard.refusal = error if is_fenced else poisoned(shard.files.directory, error)
        if shard.group is not group:
            group.later = [*group.later, shard.group]
        shard.close_group()
        _give_back(shard, (group, *group.later), error)
    for one in (*group.later, group):
        shard.resolve_group(one, error)


def fail_later_groups(
    shard: Shard,
    later: list[Group],
    error: StratalogError,
    topics: Sequence[TopicLog],
    is_clean: bool,
) -> None:
    """Give back the offsets that topics gave to a group of another shard, and all since.

    Unless nothing of their frames is left (`is_clean`), these offsets are not used again. Groups
    that fail as well are added to `later`, which makes the call idempotent; the commit lock is
    held.
    """
    with shard.lock:
        if not is_clean and shard.refusal is None:
            shard.refusal = poisoned(shard.files.directory, error)
        later += [shard.group]
        shard.close_group()
        _give_back(shard, later, error, topics)
    for one in later:
        shard.resolve_group(one, error)


def _give_back(
    shard: Shard, groups: Sequence[Group], error: StratalogError, topics: Sequence[TopicLog] = ()
) -> None:
    """Take back the offsets of frames that are not in the log, and those of `topics`; locked.

    Offsets that callers know are never given out again, whatever happened to the records.
    """
    shard.in_flight = None
    is_known = any(group.is_acknowledged for group in groups)
    failed = dict.fromkeys(topics)
    for group in groups:
        for entry in (group.encoded or group.entries)[group.published :]:
            failed |= dict.fromkeys(topic for topic in entry.topics if topic.shard is shard)
            if not isinstance(entry, Pending) and entry.on_fail is not None:
                entry.on_fail()
    for topic in failed:
        topic.give_back(is_known=is_known)
    if is_known:
        shard.lost = error
