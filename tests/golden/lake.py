"""A lake of one topic: what the golden files of it say."""

from __future__ import annotations

from stratalog.format.lake import (
    LakeBody,
    LakeContent,
    LakeFile,
    LakeManifest,
    LakeSource,
    LakeSuperseded,
    encode_lake,
    encode_lake_manifest,
)
from stratalog.format.names import LakeName, lake_name
from stratalog.format.snapshot import (
    CatalogState,
    LakeSnapshot,
    LakesState,
    LogState,
    Snapshot,
    encode_snapshot,
)

IDENTITY = bytes(range(64, 80))
DIRECTORY = f"{IDENTITY.hex()}-{bytes(range(8)).hex()}"
NOW = 1_700_000_000_123_456_789


def _name(number: int, checksum: int, *, is_manifest: bool = False) -> str:
    return lake_name(LakeName(DIRECTORY, 3, 1, number, checksum, is_manifest))


MANIFEST = LakeManifest(
    IDENTITY, 3, 1, 9,
    LakeContent(
        NOW, 100, 400,
        [
            LakeFile(_name(100, 0xAB), 100, 250, 140, 70_000_000, NOW - 900, NOW - 500, 0, 10,
                     [LakeSource(100, 200, 95, 50_000), LakeSource(200, 250, 45, 30_000)]),
            LakeFile(_name(250, 0xCD), 250, 400, 150, 1234, NOW - 400, NOW - 100, NOW + 5000, 0,
                     [LakeSource(250, 400, 150, 9_000)]),
        ],
        [LakeSuperseded(_name(8, 0xEF, is_manifest=True), NOW - 7)],
    ),
)  # fmt: skip
BODY = LakeBody(
    9, 100, 400, 290, 70_001_234, 2, 555, "/mnt/größer", _name(9, 0x1234, is_manifest=True)
)
SNAPSHOT = Snapshot(
    5, NOW, IDENTITY, LogState({0: 4096}), CatalogState(4, {"orders": 1}, "", [], []),
    lakes=LakesState([LakeSnapshot(3, 120, BODY)]),
)  # fmt: skip


def files() -> dict[str, bytes]:
    """Every structure of a lake, as bytes."""
    return {
        "manifest.lake": encode_lake_manifest(MANIFEST),
        "frame.body": encode_lake(BODY),
        "lakes.snap": encode_snapshot(SNAPSHOT),
    }
