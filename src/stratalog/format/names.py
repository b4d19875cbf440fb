"""Every name on disk, and the only place they are spelled.

::

    <store>/store                        identity and format version
    <store>/lock                         held by the one writer; names it
    <store>/ceilings                     up to where offsets may be given out; not after a close
    <store>/ceilings.tmp                 the same, being made
    <store>/claim                        which objects of a cold store this directory may delete
    <store>/claim.tmp                    the claim being written
    <store>/log/shard-NN/<lsn>.log       the log; the name is the lsn of the first byte
    <store>/log/shard-NN/<lsn>.free      a log file that is no longer needed, to be used again
    <store>/log/ends                     how far the log was durable, at least
    <store>/log/ends.tmp                 the same, being written
    <store>/topics/<id>/<offset>.open    the segment being written; the name is its first offset
    <store>/topics/<id>/<offset>.seg     a sealed segment, which never changes
    <store>/topics/<id>/<offset>.tmp     a segment being rewritten
    <store>/topics/<id>/<offset>.state   a table's state up to an offset; the newest two
    <store>/snapshots/<number>.snap      all projections at one position of the log
    <store>/snapshots/<number>.tmp       a snapshot being written
    <store>/quarantine/<name>            damaged bytes that a repair took out of use
    <store>/pipelines/<name>/            how far a job has come that reads from elsewhere: Spark's
    <store>/incoming/<unique>.seg        a staged segment, written beside the store's writer
    <store>/incoming/<unique>.tmp        the same, or a manifest, being written
    <store>/incoming/<key>.manifest      staged segments that are to be adopted; put there once
    <store>/incoming/<key>.rejected      a manifest that could not be: why, a line break, itself

A user's name is never a path: topics have interned ids, here in 16 hexadecimal digits. In the cold
store a segment is called `<identity>-<incarnation>/<id>-<offset>-<checksum>.seg`: the store, the
directory that put it there (see the claim), the topic, the first offset, and the XXH3-64 of its
bytes, the last in 16 hexadecimal digits like the incarnation. Earlier releases called it
`<id>/<offset>.seg`; such objects are read, and never deleted. In the lake, a directory of the same
name holds files called `<id>-<epoch>-<offset>-<checksum>.parquet` and manifests called
`<id>-<epoch>-<generation>-<checksum>.lake`. What is unique has the nanoseconds of
its creation in 20 digits, a dash and 32 random hexadecimal digits; the key of a manifest is 32
hexadecimal digits (XXH3-128 of the writer's name), a dash and 20 digits (the batch).
"""

from __future__ import annotations

import os
import re
import secrets
from typing import NamedTuple

from xxhash import xxh3_128_hexdigest

from stratalog.errors import OptionError, TooLargeError, WrongTypeError

TOPIC_NAME_BYTES_MAX = 255

_DIGITS = 20  # holds any u64

_COLD_NAME = re.compile(
    r"(([0-9a-f]{32})-[0-9a-f]{16})/([0-9a-f]{16})-([0-9]{20})-([0-9a-f]{16})\.seg", re.ASCII
)


_LAKE_NAME = re.compile(
    r"([0-9a-f]{32}-[0-9a-f]{16})/([0-9a-f]{16})-([0-9a-f]{8})-([0-9]{20})-([0-9a-f]{16})"
    r"\.(parquet|lake)",
    re.ASCII,
)


def store_path(root: str) -> str:
    """The file that makes a directory a store."""
    return os.path.join(root, "store")


def store_temp_path(root: str) -> str:
    """The store file while it is being made."""
    return os.path.join(root, "store.tmp")


def lock_path(root: str) -> str:
    """The file the writer locks."""
    return os.path.join(root, "lock")


def ceilings_path(root: str) -> str:
    """The file that says up to where offsets may have been given out."""
    return os.path.join(root, "ceilings")


def ceilings_temp_path(root: str) -> str:
    """That file while it is being made."""
    return os.path.join(root, "ceilings.tmp")


def log_path(root: str) -> str:
    """The directory of all shards."""
    return os.path.join(root, "log")


def shard_path(root: str, shard: int) -> str:
    """The directory of one shard's log files."""
    return os.path.join(root, "log", f"shard-{shard:02d}")


def parse_shard(name: str) -> int | None:
    """The number in `shard-NN`, or None for any other name."""
    digits = name.removeprefix("shard-")
    if not (digits.isascii() and digits.isdigit()):
        return None
    number = int(digits)
    return number if name == f"shard-{number:02d}" else None  # one name per shard, ours


def shard_number(directory: str) -> int:
    """The number of a shard, by its directory; 0 for any other."""
    return parse_shard(os.path.basename(directory)) or 0


def log_file_path(directory: str, first_lsn: int) -> str:
    """A log file, by the lsn of its first byte."""
    return os.path.join(directory, f"{first_lsn:0{_DIGITS}d}.log")


def free_file_path(directory: str, first_lsn: int) -> str:
    """A released log file, by the lsn it had."""
    return os.path.join(directory, f"{first_lsn:0{_DIGITS}d}.free")


def ends_path(root: str, suffix: str = "") -> str:
    """The file that says how far the log was durable."""
    return os.path.join(root, "log", f"ends{suffix}")


def topics_path(root: str) -> str:
    """The directory of all topics' segments."""
    return os.path.join(root, "topics")


def topic_path(root: str, topic_id: int) -> str:
    """The directory of one topic's segments."""
    return os.path.join(root, "topics", f"{topic_id:016x}")


def parse_topic(name: str) -> int | None:
    """The id in the name of a topic's directory, or None for any other name."""
    if len(name) != 16 or not set(name) <= set("0123456789abcdef"):
        return None
    return int(name, 16)


def segment_name(first_offset: int, suffix: str = ".seg") -> str:
    """A segment's own name, by its first offset."""
    return f"{first_offset:0{_DIGITS}d}{suffix}"


def claim_path(root: str) -> str:
    """The file that says which objects of a cold store are this directory's own."""
    return os.path.join(root, "claim")


def claim_temp_path(root: str) -> str:
    """The claim while it is being written."""
    return os.path.join(root, "claim.tmp")


def old_cold_name(topic_id: int, first_offset: int) -> str:
    """A segment's name in the cold store, as earlier releases chose it: it does not say whose."""
    return f"{topic_id:016x}/{segment_name(first_offset)}"


def cold_directory(identity: bytes, incarnation: bytes) -> str:
    """Where a directory's own objects are in the cold store."""
    return f"{identity.hex()}-{incarnation.hex()}"


def cold_prefix(directory: str, topic_id: int) -> str:
    """Return the prefix of the names of a topic's objects."""
    return f"{directory}/{topic_id:016x}-"


def cold_name(directory: str, topic_id: int, first_offset: int, checksum: int) -> str:
    """A segment's name in the cold store: no two different segments have the same."""
    return f"{cold_prefix(directory, topic_id)}{first_offset:0{_DIGITS}d}-{checksum:016x}.seg"


class ColdName(NamedTuple):
    """The parts of an object's name in the cold store."""

    identity: bytes
    directory: str
    topic_id: int
    first_offset: int
    checksum: int


def parse_cold_name(name: str) -> ColdName | None:
    """Parse a name; None for any other, those of earlier releases among them."""
    found = _COLD_NAME.fullmatch(name)
    if found is None:
        return None
    directory, identity, topic_id, first, checksum = found.groups()
    return ColdName(
        bytes.fromhex(identity), directory, int(topic_id, 16), int(first), int(checksum, 16)
    )


class LakeName(NamedTuple):
    """The parts of a file's name in the lake."""

    directory: str
    topic_id: int
    epoch: int
    number: int
    """The first offset of a Parquet file, the generation of a manifest."""
    checksum: int
    is_manifest: bool


def lake_name(name: LakeName) -> str:
    """The name of a file in the lake: no two different files have the same."""
    suffix = "lake" if name.is_manifest else "parquet"
    return (
        f"{name.directory}/{name.topic_id:016x}-{name.epoch:08x}-{name.number:0{_DIGITS}d}-"
        f"{name.checksum:016x}.{suffix}"
    )


def parse_lake_name(name: str) -> LakeName | None:
    """Parse a name; None for any other."""
    found = _LAKE_NAME.fullmatch(name)
    if found is None:
        return None
    directory, topic_id, epoch, number, checksum, suffix = found.groups()
    return LakeName(
        directory, int(topic_id, 16), int(epoch, 16), int(number), int(checksum, 16),
        suffix == "lake",
    )  # fmt: skip


def snapshots_path(root: str) -> str:
    """The directory of snapshots."""
    return os.path.join(root, "snapshots")


def snapshot_path(root: str, number: int, suffix: str = ".snap") -> str:
    """A snapshot; a higher number is a later one."""
    return os.path.join(root, "snapshots", f"{number:0{_DIGITS}d}{suffix}")


def quarantine_path(root: str, name: str) -> str:
    """A copy of what a repair took out of use."""
    return os.path.join(root, "quarantine", name)


def incoming_path(root: str, name: str = "") -> str:
    """The directory of what is to be adopted, or a file in it."""
    return os.path.join(root, "incoming", name) if name else os.path.join(root, "incoming")


def unique_name(now: int) -> str:
    """Make a unique name that shows its age; without a suffix."""
    return f"{now:0{_DIGITS}d}-{secrets.token_hex(16)}"


def is_staged_name(name: str) -> bool:
    """Whether a name, without its suffix, is one of a staged segment."""
    return re.fullmatch("[0-9]{20}-[0-9a-f]{32}", name, re.ASCII) is not None


def manifest_key(writer: str, batch: int) -> str:
    """The name of a manifest, without its suffix: those of one writer in the order of batches."""
    return f"{xxh3_128_hexdigest(writer.encode())}-{batch:0{_DIGITS}d}"


def pipeline_path(root: str, name: str) -> str:
    """Where a job that reads from elsewhere notes how far it is."""
    return os.path.join(root, "pipelines", name)


def parse_numbered(name: str, suffix: str = ".log") -> int | None:
    """The number in a name of twenty digits and a suffix, or None for any other name."""
    digits = name.removesuffix(suffix)
    if len(digits) == _DIGITS == len(name) - len(suffix) and digits.isascii() and digits.isdigit():
        return int(digits)
    return None


def check_topic_name(name: object) -> str:
    """Any printable text up to 255 bytes; of a class of its own, the text alone."""
    if not isinstance(name, str):
        raise WrongTypeError(f"a topic name is text, not {type(name).__name__}: {name!r}")
    if not name:
        raise OptionError("a topic name is empty: give it at least one character")
    if not name.isprintable():  # also false for lone surrogates, so the encode below succeeds
        raise OptionError(f"topic name {name!r} has characters that cannot be printed")
    if len(name.encode()) > TOPIC_NAME_BYTES_MAX:
        raise TooLargeError(
            f"topic name of {len(name.encode())} bytes is too long: the limit is "
            f"{TOPIC_NAME_BYTES_MAX} (it starts {name[:40]!r})"
        )
    return str.__str__(name)
