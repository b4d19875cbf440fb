"""Segments that a job writes to a store: staged by executors, published by the driver, adopted.

Executors write to `incoming/`, so they must see the store under the same path as the driver; that
needs no lock. One manifest makes a whole step visible, or nothing of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from stratalog.errors import OptionError, StorageError
from stratalog.format.manifest import Part, StagedSegment
from stratalog.format.merge import Block
from stratalog.fs import PosixFileSystem
from stratalog.handles.publish import Publisher
from stratalog.segments.checkpoint import blocks
from stratalog.segments.read import deleted_mask
from stratalog.segments.rewrite import Mask, rewritten
from stratalog.segments.segment import Slice
from stratalog.segments.staging import BlockStage, manifest_of
from stratalog.spark.places import absolute, is_remote
from stratalog.spark.source.read_task import Living, PieceReader, Task

# A live writer looks for manifests every second, and may be busy.
_ADOPT_SECONDS = 60.0


def local_root(path: str | os.PathLike[str]) -> str:
    """Return the directory of a store that is to be changed."""
    root = absolute(os.fspath(path))
    if is_remote(root):
        raise OptionError(f"{root} cannot be changed: only a store in a directory can")
    return root


def publish(root: str, writer: str, batch: int | None, parts: Sequence[Part]) -> bool:
    """Publish staged segments and wait for their adoption; False if the batch was there before."""
    with Publisher(root) as publisher:
        is_new = publisher.publish(manifest_of(writer, batch, parts))
        if not publisher.adopt_now(writer, batch or 0, _ADOPT_SECONDS):
            raise StorageError(
                f"{root}: what was staged is published, but the writer that has the store open "
                f"did not adopt it within {_ADOPT_SECONDS:.0f} s: it will when it gets to it"
            )
    return is_new


class Rewrite(NamedTuple):
    """Adjacent segments that become one."""

    root: str
    topic_id: int
    first: int
    end: int
    codec: int
    task: Task
    winners: bytes | None
    """For a compacted topic: offsets of the last record of each key."""


class Rewritten(NamedTuple):
    """A new segment, and those it was made from."""

    staged: StagedSegment
    records: int
    """First offsets of the segments that it replaces."""


def rewrite_group(unit: Rewrite) -> Rewritten:
    """Rewrite segments without dead records; on an executor."""
    winners = None if unit.winners is None else BitMap64.deserialize(unit.winners)

    def make(living: Iterator[Living]) -> Iterator[Block]:
        return rewritten(((one.batch_slice, _dead(one, winners)) for one in living), unit.codec)

    return _stage(unit, make)


def _stage(unit: Rewrite | Copy, make: Callable[[Iterator[Living]], Iterator[Block]]) -> Rewritten:
    """Stage a segment made from the records of a unit; nothing is left if that fails."""
    reader = PieceReader(unit.task)
    stage = BlockStage(PosixFileSystem(), unit.root, unit.topic_id, unit.first)
    try:
        for block in make(one for piece in unit.task.pieces for one in reader.read(piece)):
            stage.append(block)
        return Rewritten(stage.finish(unit.end), reader.records)
    except BaseException:
        stage.abandon()
        raise
    finally:
        reader.close()


def _dead(one: Living, winners: BitMap64 | None) -> Mask | None:
    part, keep, _ = one
    dead = None if keep is None else ~keep
    if winners is None or part.batch.key is None:
        return dead
    replaced = keyed(part)
    wins = deleted_mask(winners, part.batch.offsets(part.first, part.end)) if winners else None
    if wins is not None:
        replaced &= ~wins
    return replaced if dead is None else dead | replaced


def keyed(part: Slice) -> npt.NDArray[np.bool_]:
    """Return which records have a key."""
    batch, first, end = part
    if batch.key is None:
        return np.zeros(end - first, np.bool_)
    return batch.valid(batch.key)[first:end].copy()


class Copy(NamedTuple):
    """Records of the log that become a segment."""

    root: str
    topic_id: int
    first: int
    end: int
    codec: int
    task: Task


def copy_log(unit: Copy) -> Rewritten:
    """Write a segment from records in the log, as a checkpoint does; on an executor."""

    def make(living: Iterator[Living]) -> Iterator[Block]:
        parts = (one.batch_slice for one in living)
        return (block for block, _ in blocks(parts, unit.end, unit.codec, lambda: 1 << 40))

    return _stage(unit, make)
