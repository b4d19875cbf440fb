"""The files that a topic has in the store's lake, for engines that read Parquet themselves."""

from __future__ import annotations

import os

from stratalog.errors import NoLakeError
from stratalog.fs import FileSystem
from stratalog.fs.cold import open_known
from stratalog.lake.manifests import read_manifest
from stratalog.lake.policy import floor_of
from stratalog.log.topic import TopicLog


class LakeStatus:
    """The lake files of a topic, as of the moment the status was requested."""

    def __init__(
        self, fs: FileSystem, identity: bytes, topic: TopicLog, given: str | None = None
    ) -> None:
        lake = topic.history.lake
        if lake is None:
            raise NoLakeError(
                f"Topic {topic.name!r} has no lake yet. Create or alter it with lake=True, and "
                "open the store with lake=...; its first file comes with its first sealed segment."
            )
        self._fs = fs
        self._given = given
        self._identity = identity
        self._topic = topic
        self._lake = lake
        self.path = lake.location
        """Directory or URL of the lake."""
        self.generation = lake.generation
        """Number of the manifest that lists the files."""
        self.start_offset = max(lake.start, min(floor_of(topic), lake.end))
        """First offset that the files cover."""
        self.end_offset = lake.end
        """First offset that is only in the log."""
        self.records = lake.records
        self.bytes = lake.bytes

    def files(self) -> list[str]:
        """Paths or URLs of the files, in the order of their offsets.

        Together they are consistent: no record is in two of them. Records that were deleted since
        are still in them, until `store.compact()` or the store's upkeep has rewritten the files.
        """
        place = open_known(self.path, self._given, self._fs)
        try:
            manifest = read_manifest(place, self._lake, self._topic, self._identity)
        finally:
            place.close()
        return [path_of(self.path, file.name) for file in manifest.content.files if file.records]

    def __repr__(self) -> str:
        return (
            f"<LakeStatus {self.path!r} offsets {self.start_offset} to {self.end_offset}, "
            f"{self._lake.files} files, {self.bytes} bytes>"
        )


def path_of(location: str, name: str) -> str:
    """Return the path or URL by which other programs find a file of a lake."""
    if "://" not in location:
        return os.path.join(location, name)
    return f"{location.partition('?')[0].rstrip('/')}/{name}"
