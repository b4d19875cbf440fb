"""A store of format version 2 opens as it is, with all that binds its files to it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import stratalog
from stratalog.format.ends import decode_ends, encode_ends
from stratalog.format.segment import decode_segment_header
from tests.golden.bound import IDENTITY

GOLDEN = Path(__file__).parent / "v2-bound"


def test_a_store_of_version_2_is_read_and_goes_on(tmp_path: Path) -> None:
    """Every record is there, nothing is wrong with it, and it takes appends."""
    root = tmp_path / "data"
    shutil.copytree(GOLDEN, root)
    expected = json.loads((root / "expected.json").read_text())["topics"]
    (root / "expected.json").unlink()
    assert stratalog.verify(root).ok
    with stratalog.open(root) as store:
        assert store.damage is None
        for name, values in expected.items():
            assert [v.decode() for v in store.topic(name).read_values() if v] == values
            store.topic(name).append(b"later")
    assert stratalog.verify(root).ok


def test_the_ends_of_its_log_read_back() -> None:
    """They are of this store, of both shards, and written as they were."""
    data = (GOLDEN / "log" / "ends").read_bytes()
    ends = decode_ends(data)
    assert (ends.identity, sorted(ends.shards)) == (IDENTITY, [0, 1])
    assert encode_ends(ends) == data


def test_its_segments_say_whose_they_are() -> None:
    """In the header, where older releases wrote zeros."""
    headers = [path.read_bytes()[:64] for path in GOLDEN.rglob("*.seg")]
    assert headers
    assert {decode_segment_header(header).identity for header in headers} == {IDENTITY}
