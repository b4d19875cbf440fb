"""Checksums that an import compares: of what it appended, and of what it reads back."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from stratalog.interop.digest import Digest
from stratalog.interop.model import SCHEMA

ROWS: list[dict[str, Any]] = [
    {"offset": 3, "key": b"k", "value": b"", "headers": [{"key": "a", "value": b"1"}], "tag": "t"},
    {"offset": 4, "key": b"", "value": None, "headers": [], "node": "n"},
    {"offset": 7, "key": None, "value": b"v" * 9, "headers": None, "expires_at": 10**18},
    {"offset": 8, "value": b"gone", "expires_at": 5},
]
CHANGES: list[tuple[int, str, Any]] = [
    (0, "offset", 2), (0, "key", None), (0, "key", b"j"), (0, "value", None), (0, "tag", None),
    (0, "headers", [{"key": "b", "value": b"1"}]), (0, "headers", [{"key": "a", "value": b"2"}]),
    (1, "headers", [{"key": "a", "value": b""}]), (1, "node", "m"), (2, "value", b"v" * 8),
]  # fmt: skip


def digest_of(rows: list[dict[str, Any]], size: int) -> Digest:
    """The checksums of rows that come so many at a time."""
    digest = Digest(lives_until=10)
    batch = pa.RecordBatch.from_pylist(rows, SCHEMA)
    for start in range(0, len(rows), size):
        digest.update(batch.slice(start, size))
    return digest


@pytest.mark.parametrize("size", [1, 2, 3])
def test_checksums_do_not_depend_on_batches(size: int) -> None:
    """A store cuts records into other batches than the directory they came from."""
    whole, cut = digest_of(ROWS, 4), digest_of(ROWS, size)
    assert (cut.records, cut.checksums()) == (whole.records, whole.checksums())


def test_records_that_expire_are_left_out() -> None:
    """They may be gone when they are read back."""
    assert digest_of(ROWS, 4).records == 3
    assert digest_of(ROWS, 4).checksums() == digest_of(ROWS[:3], 4).checksums()


@pytest.mark.parametrize(("row", "name", "value"), CHANGES)
def test_a_change_of_anything_shows(row: int, name: str, value: Any) -> None:
    """In every column, none and empty told apart."""
    changed = [dict(one) for one in ROWS]
    changed[row][name] = value
    assert digest_of(changed, 4).checksums() != digest_of(ROWS, 4).checksums()
