"""Manifests and files of a lake: named by what is in them, put there once, verified when read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xxhash import xxh3_64_intdigest

from stratalog.errors import CorruptionError, FormatError
from stratalog.format.lake import (
    LakeBody,
    LakeContent,
    LakeFile,
    LakeManifest,
    decode_lake_manifest,
    encode_lake_manifest,
)
from stratalog.format.names import LakeName, lake_name, parse_lake_name
from stratalog.fs.cold import ColdStore, DirectoryCold
from stratalog.lake.sums import encode_sums, summed_name, sums_name
from stratalog.log.topic import TopicLog

if TYPE_CHECKING:
    import pyarrow as pa


class Held:
    """Bytes in memory that are put into a lake as a file."""

    def __init__(self, name: str, data: pa.Buffer | bytes) -> None:
        self.path = name
        self._data = memoryview(data)

    def pread(self, length: int, position: int) -> bytes:
        """Some of them."""
        return bytes(self._data[position : position + length])

    def size(self) -> int:
        """How many there are."""
        return len(self._data)


def put(
    place: ColdStore, directory: str, topic: TopicLog, number: int, data: pa.Buffer | bytes,
    *, is_manifest: bool = False,
) -> str:  # fmt: skip
    """Have the lake hold a file; returns its name there, which says what is in it."""
    checksum = xxh3_64_intdigest(memoryview(data))
    name = lake_name(LakeName(directory, topic.id, topic.epoch, number, checksum, is_manifest))
    held = Held(name, data)
    if not is_manifest and isinstance(place, DirectoryCold):  # first: none is there without them
        place.put(sums_name(name), Held(sums_name(name), encode_sums(memoryview(data))))
    if not place.put(name, held) and (found := place.size(name)) != held.size():
        raise CorruptionError(
            f"{name} has {found} bytes in the lake {place.location}, {held.size()} were to be put "
            "there. Check who else writes there, and remove it."
        )
    return name


def put_manifest(
    place: ColdStore, directory: str, topic: TopicLog, manifest: LakeManifest
) -> LakeBody:
    """Have the lake hold a manifest; returns what the frame says that names it."""
    data = encode_lake_manifest(manifest)
    name = put(place, directory, topic, manifest.generation, data, is_manifest=True)
    return lake_body(manifest, len(data), place.location, name)


def lake_body(manifest: LakeManifest, size: int, location: str, name: str) -> LakeBody:
    """Sum a manifest up."""
    content = manifest.content
    return LakeBody(
        manifest.generation, content.start, content.end,
        sum(file.records for file in content.files), sum(file.bytes for file in content.files),
        len(content.files), size, location, name,
    )  # fmt: skip


def read_manifest(
    place: ColdStore, lake: LakeBody, topic: TopicLog, identity: bytes
) -> LakeManifest:
    """The manifest that a topic's frame names; raises `CorruptionError` if it is another."""
    data = place.read(lake.name, 0, lake.manifest_bytes)
    try:
        check_named(lake.name, data)
        manifest = decode_lake_manifest(data)
        has = (manifest.identity, manifest.topic_id, manifest.generation)
        if has != (identity, topic.id, lake.generation):
            raise CorruptionError("it is of another store, topic or generation")
    except FormatError as error:
        raise CorruptionError(
            f"{lake.name} in the lake {place.location} is not what topic {topic.name!r} put there: "
            f"{error}. Restore it from a copy."
        ) from error
    return manifest


def read_file(place: ColdStore, file: LakeFile) -> bytes:
    """The whole of a Parquet file; raises `CorruptionError` if it is another."""
    data = place.read(file.name, 0, file.bytes)
    try:
        check_named(file.name, data)
    except FormatError as error:
        raise CorruptionError(
            f"{file.name} in the lake {place.location}: {error}. Restore it from a copy."
        ) from error
    return data


def remove(place: ColdStore, name: str) -> None:
    """Have the lake no longer hold a file, nor its checksums."""
    place.delete(name)
    if isinstance(place, DirectoryCold) and summed_name(name) == name:
        place.delete(sums_name(name))


def check_named(name: str, data: bytes) -> None:
    """Raise `CorruptionError` unless bytes are those that a name says."""
    told = parse_lake_name(name)
    if told is None or told.checksum != xxh3_64_intdigest(data):
        raise CorruptionError("its bytes are not those that its name says")


def empty(topic: TopicLog, identity: bytes, generation: int, start: int, now: int) -> LakeManifest:
    """A manifest without files."""
    content = LakeContent(now, start, start, [], [])
    return LakeManifest(identity, topic.id, topic.epoch, generation, content)
