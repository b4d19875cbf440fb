"""Atomic batches that past releases wrote are read by this one, to the last byte."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import stratalog
from stratalog.format.batch import Batch
from stratalog.format.control import decode_delete, decode_topic
from stratalog.format.frame import (
    HEADER_BYTES,
    FrameHeader,
    FrameType,
    check_body,
    decode_header,
    encode_header,
)
from stratalog.format.multi import decode_multi, inner_seed
from stratalog.model import Gap, Record

HERE = Path(__file__).parent
DIRECTORIES = sorted(HERE.glob("v*-batches"))
each_directory = pytest.mark.parametrize("root", DIRECTORIES, ids=lambda path: path.name)


def _expected(root: Path) -> dict[str, Any]:
    expected: dict[str, Any] = json.loads((root / "expected.json").read_text())["log"]
    return expected


def _records(frame: dict[str, Any]) -> list[tuple[int, bytes | None, int]]:
    return [
        (plain["offset"], None if plain.get("value") is None else bytes.fromhex(plain["value"]),
         plain["timestamp"])
        for plain in frame["records"]
    ]  # fmt: skip


def _check(frame: dict[str, Any], header: FrameHeader, body: bytes) -> None:
    """Hold what a frame says against what it should."""
    assert header._asdict() == frame["header"]
    if header.type == FrameType.RECORDS:
        found = [(r.offset, r.value, r.timestamp) for r in Batch.parse(header, body).records()]
        assert found == _records(frame)
    elif header.type == FrameType.TOPIC:
        assert decode_topic(body).name == frame["topic"]["name"]
    elif header.type == FrameType.DELETE:
        assert list(decode_delete(body)) == frame["offsets"]
    else:
        raise AssertionError(f"a frame of type {header.type}")


@each_directory
def test_every_frame_says_what_it_did_and_is_written_the_same(root: Path) -> None:
    """Frames of one topic and of several, headers and bodies, byte for byte."""
    expected = _expected(root)
    seed = expected["seed"]
    data = (root / expected["path"].lstrip("/")).read_bytes()
    inner_frames = 0
    for frame in expected["frames"]:
        at = frame["position"]
        header = decode_header(data, at, seed=seed)
        check_body(header, data, at + HEADER_BYTES)
        assert encode_header(**header._asdict(), seed=seed) == data[at : at + HEADER_BYTES]
        body = data[at + HEADER_BYTES : at + HEADER_BYTES + header.body_length]
        if header.type != FrameType.MULTI:
            _check(frame, header, body)
            continue
        assert header._asdict() == frame["header"]
        found = decode_multi(header, body, seed)
        assert [position for position, _ in found] == [one["position"] for one in frame["inner"]]
        for (position, one), inner in zip(found, frame["inner"], strict=True):
            start = position + HEADER_BYTES
            again = encode_header(**one._asdict(), seed=inner_seed(seed))
            assert again == body[position:start]
            _check(inner, one, body[start : start + one.body_length])
            inner_frames += 1
    assert inner_frames == 5


@each_directory
def test_the_directory_opens_as_a_store(root: Path, tmp_path: Path) -> None:
    """Records appended in batches come back through the front door, and can be added to."""
    shutil.copytree(root, tmp_path / "data")
    wanted: dict[int, dict[int, bytes | None]] = {}
    for frame in _expected(root)["frames"]:
        for one in frame.get("inner", [frame]):
            if "records" in one:
                values = {offset: value for offset, value, _ in _records(one)}
                wanted.setdefault(one["header"]["topic_id"], {}).update(values)
    orders, texts = wanted[7], wanted[0x1122334455667788]
    del texts[1], texts[3], orders[0]  # deleted, and expired
    with stratalog.open(tmp_path / "data", shards=1) as store:
        assert store.damage is None
        assert store.topic("orders").options.durability == "disk"
        for name, values in (("orders", orders), ("größe/注文", texts)):
            records = [one for one in store.topic(name).read() if isinstance(one, Record)]
            assert {one.offset: one.value for one in records} == values
        gaps = [one for one in store.topic("orders").read() if isinstance(one, Gap)]
        assert gaps == [Gap(0, 0, "expired")]
        store.checkpoint()
        assert store.topic("orders").append(b"more") == max(orders) + 1
    assert stratalog.verify(tmp_path / "data").ok
