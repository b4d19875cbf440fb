"""The lake's upkeep: a thread that keeps topics as Parquet in the store's lake.

A round makes files of sealed segments, joins small files, rewrites those whose records were deleted
or replaced since, and leaves out those whose time is over. Then one new manifest lists what counts,
and a `LAKE` frame names that: from then on readers use it. Files that it no longer lists stay for a
grace period, for those who read them; what no manifest ever listed is swept.

Crash: before the frame is durable, the manifest before it counts, and what was put into the lake
since is swept; after it, the new one does. Names say what is in a file, so nothing is overwritten.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial

from stratalog.clock import Clock
from stratalog.errors import StorageError
from stratalog.format.frame import FrameType
from stratalog.format.lake import (
    LakeContent,
    LakeFile,
    LakeManifest,
    LakeSuperseded,
    encode_lake,
)
from stratalog.format.names import parse_lake_name
from stratalog.fs.cold import ColdStore, open_cold
from stratalog.lake.manifests import empty, put_manifest, read_manifest, remove
from stratalog.lake.sums import summed_name
from stratalog.log.log import Log
from stratalog.log.topic import TopicLog
from stratalog.options import StoreOptions
from stratalog.state.catalog import Catalog
from stratalog.state.claim import Claim
from stratalog.state.recovery import Replay
from stratalog.state.router import control
from stratalog.upkeep.remote_rounds import RemoteRounds
from stratalog.upkeep.steps import Failures

# How often one looks for files that no manifest lists.
_SWEEP_SECONDS = 3600.0


class LakeKeeper(RemoteRounds):
    """The rounds of one store."""

    place = "the lake"
    work = "keeping the lake"

    def __init__(
        self,
        log: Log,
        replay: Replay,
        catalog: Catalog,
        options: StoreOptions,
        clock: Clock,
        lock: threading.Lock,
        claim: Claim,
    ) -> None:
        super().__init__(replay.pool.root, clock, lock, "lake", "lake")
        self._log = log
        self._replay = replay
        self._catalog = catalog
        self._options = options
        self._claim = claim
        self._lake = None if options.lake is None else open_cold(options.lake, replay.pool.fs)
        self._own = ""
        """Our directory there."""
        self._manifests: dict[int, LakeManifest] = {}
        """By topic, the one that counts."""
        self._removed: set[str] = set()
        """Files that were superseded, and are gone."""
        self._unsure: dict[int, int] = {}
        """By topic, a generation whose frame could not be written, and may be there all the same.
        Nothing is removed until a later one is."""
        self._swept_at: float | None = None

    def start(self) -> None:
        """Begin, if there is a lake."""
        if self._lake is not None:
            super().start()

    def wake(self) -> None:
        """Have a round made, if there is a lake."""
        if self._lake is not None:
            super().wake()

    def run(self, ratio: float | None = None, *, is_purge: bool = False) -> int:
        """Bring every lake up to date; returns how many files were made.

        Files are rewritten of which at least a `ratio` was deleted; with `is_purge` those that hold
        anything that can no longer be read, and what they take the place of goes at once.
        """
        lake = self._lake
        if lake is None:
            return 0
        from stratalog.upkeep.lake_round import (
            LakeRound,  # Arrow, which is loaded for those who use it
        )

        made = 0
        dead_ratio = self._options.rewrite_ratio if ratio is None else ratio

        def keep(topic: TopicLog) -> None:
            nonlocal made
            made += LakeRound(self, lake, topic, dead_ratio, is_purge=is_purge).run()
            self._remove(lake, topic, 0.0 if is_purge else self._options.lake_grace)

        with self._one_at_a_time(), Failures() as failures:
            with self._changing():
                wanted = list(filter(_has_lake, self._catalog.topics()))
                self._own = self._claim.make() if wanted else self._claim.find() or ""
            for topic in wanted:
                failures.collect_steps((keep,), topic)
            if is_purge or self._is_sweep_due():
                failures.collect(partial(self._sweep, lake))
        return made

    def unreached(self) -> list[str]:
        """Sentences about files that a purge of the lake did not reach."""
        return [
            f"The lake of topic {topic.name!r} in {topic.history.lake.location} was not purged: "
            "open the store with lake= and purge it again."
            for topic in self._catalog.topics()
            if topic.history.lake is not None
            and topic.history.lake.files
            and not (self._lake is not None and self.is_own(self._lake, topic))
        ]

    # --- manifests ------------------------------------------------------------------------

    def is_own(self, lake: ColdStore, topic: TopicLog) -> bool:
        """Whether a topic's files are in this lake, and were put there by this directory."""
        found = topic.history.lake
        if found is None or not self._own:
            return False
        return found.location == lake.location and found.name.startswith(f"{self._own}/")

    def manifest(self, lake: ColdStore, topic: TopicLog, now: int) -> LakeManifest:
        """The manifest that counts; one without files if a lake is to be begun."""
        found = topic.history.lake
        identity = self._replay.identity
        if found is None:
            return empty(topic, identity, 0, topic.earliest, now)
        known = self._manifests.get(topic.id)
        if known is not None and known.generation == found.generation:
            return known
        if not self.is_own(lake, topic) or self._is_lost(lake, found.name):
            if found.start < topic.earliest and topic.options.lake_retention is not None:
                raise StorageError(
                    f"The lake of topic {topic.name!r} is {found.name} in {found.location}, and "
                    f"not in {lake.location}. It alone has offsets {found.start} to "
                    f"{topic.earliest - 1}. Bring it back, or give lake_retention=None up."
                )
            return empty(topic, identity, found.generation, topic.earliest, now)
        what = f"read {found.name} in {lake.location}"
        manifest = self.asked(what, lambda: read_manifest(lake, found, topic, identity))
        self._manifests[topic.id] = manifest
        return manifest

    def _is_lost(self, lake: ColdStore, name: str) -> bool:
        return self.asked(f"look for {name} in {lake.location}", lambda: lake.size(name)) is None

    def commit(
        self, lake: ColdStore, topic: TopicLog, before: LakeManifest, files: list[LakeFile],
        end: int, now: int,
    ) -> LakeManifest:  # fmt: skip
        """Have a new manifest count."""
        named = {file.name for file in files}
        gone = [file.name for file in before.content.files if file.name not in named]
        if topic.history.lake is not None and self.is_own(lake, topic):
            gone.append(topic.history.lake.name)
        superseded = [
            one
            for one in before.content.superseded
            if one.name not in self._removed and one.name not in named
        ]
        superseded += [LakeSuperseded(name, now) for name in gone]
        start = files[0].first_offset if files else end
        manifest = LakeManifest(
            self._replay.identity, topic.id, topic.epoch,
            max(before.generation, self._unsure.get(topic.id, 0)) + 1,
            LakeContent(now, start, end, files, superseded),
        )  # fmt: skip
        body = self.asked(
            f"put a manifest of topic {topic.name!r} into {lake.location}",
            partial(put_manifest, lake, self._own, topic, manifest),
        )
        with self._changing():
            if not topic.is_dropped:
                self._unsure[topic.id] = manifest.generation
                self._log.write(
                    [control(topic, FrameType.LAKE, manifest.generation, encode_lake(body))]
                )
                del self._unsure[topic.id]
                self._manifests[topic.id] = manifest
                self._removed -= {one.name for one in before.content.superseded}
        return manifest

    @property
    def own(self) -> str:
        """Our directory in the lake."""
        return self._own

    def now(self) -> int:
        """The time, in nanoseconds."""
        return self._clock.time_ns()

    # --- what goes ------------------------------------------------------------------------

    def _remove(self, lake: ColdStore, topic: TopicLog, grace: float) -> None:
        """Remove files that were superseded long enough ago."""
        manifest = self._manifests.get(topic.id)
        if manifest is None or topic.id in self._unsure:
            return
        before = self._clock.time_ns() - round(grace * 10**9)
        named = {file.name for file in manifest.content.files}
        for one in manifest.content.superseded:
            is_due = one.at <= before and one.name not in self._removed | named
            if is_due and one.name.startswith(f"{self._own}/"):
                self._delete(lake, one.name)
                self._removed.add(one.name)

    def _is_sweep_due(self) -> bool:
        if self._manifests.keys() - self._replay.topics.keys():
            return True  # one was dropped
        now = self._clock.monotonic()
        return self._swept_at is None or now - self._swept_at >= _SWEEP_SECONDS

    def _sweep(self, lake: ColdStore) -> None:
        """Remove files of our own that no manifest lists: a crash or a dropped topic left them."""
        if self._own:
            what = f"list {self._own}/ in {lake.location}"
            names = self.asked(what, lambda: lake.names(f"{self._own}/"))
            with self._changing():
                topics = {one.id: one for one in self._catalog.topics()}
            kept = {name for topic in topics.values() for name in self._listed(topic)}
            for name in names:
                told = parse_lake_name(summed_name(name))
                if told is None or summed_name(name) in kept:
                    continue
                topic = topics.get(told.topic_id)
                if topic is None or self._is_known(topic):
                    self._delete(lake, name)
        for topic_id in self._manifests.keys() - self._replay.topics.keys():
            del self._manifests[topic_id]
        self._swept_at = self._clock.monotonic()

    def _is_known(self, topic: TopicLog) -> bool:
        """Whether it is known what a topic has in the lake: nothing, or what a manifest lists."""
        if topic.id in self._unsure:
            return False
        return topic.history.lake is None or topic.id in self._manifests

    def _listed(self, topic: TopicLog) -> Iterator[str]:
        manifest = self._manifests.get(topic.id)
        if topic.history.lake is not None:
            yield topic.history.lake.name
        if manifest is not None:
            yield from (file.name for file in manifest.content.files)
            yield from (one.name for one in manifest.content.superseded)

    def _delete(self, lake: ColdStore, name: str) -> None:
        self.asked(f"delete {name} in {lake.location}", partial(remove, lake, name))


def _has_lake(topic: TopicLog) -> bool:
    """Whether there is something to keep for a topic, or to give up."""
    if topic.is_ephemeral:
        return False
    lake = topic.history.lake
    return topic.options.lake or (lake is not None and lake.files > 0)
