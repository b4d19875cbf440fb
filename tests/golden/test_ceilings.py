"""Stores that a power cut left with ceilings, and those recovered from it, are read for ever.

`scripts/make_golden_ceilings.py` made them. They are never made again.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import stratalog
from stratalog import Gap
from stratalog.format.ceilings import Ceiling, decode_ceilings, encode_ceilings_header, encode_slot
from stratalog.format.store import decode_store

GOLDEN = Path(__file__).parent / "v1-ceilings"
AFTER = json.loads((GOLDEN / "expected.json").read_text())["after"]


def test_the_file_is_decoded_and_encoded_to_the_byte() -> None:
    """Its header, and a slot for each of two topics."""
    data = (GOLDEN / "crashed" / "ceilings").read_bytes()
    held = decode_ceilings(data)
    assert held.identity == decode_store((GOLDEN / "crashed" / "store").read_bytes()).identity
    assert {topic: one.reserved for topic, one in held.ceilings.items()} == {1: AFTER, 2: AFTER}
    assert held.damaged == 0
    slots = [encode_slot(topic, Ceiling(*one)) for topic, one in held.ceilings.items()]
    made = b"".join([encode_ceilings_header(held.identity, held.boot), *slots])
    assert data == made.ljust(len(data), b"\0")


@pytest.mark.parametrize("name", ["crashed", "recovered"])
def test_a_store_goes_on_above_its_ceilings(tmp_path: Path, name: str) -> None:
    """The gap is made, or found in the log and the snapshot."""
    shutil.copytree(GOLDEN / name, tmp_path / "s")
    for _ in range(2):
        with stratalog.open(tmp_path / "s") as store:
            for topic in ("a", "b"):
                items = list(store.topic(topic).read())
                assert items[0].value == b"safe"  # type: ignore[union-attr]
                assert items[1] == Gap(1, AFTER - 1, "crash")
            assert store.topic("b").next_offset == AFTER
            assert store.topic("a").next_offset == AFTER + (name == "recovered")
    assert stratalog.verify(tmp_path / "s").ok
