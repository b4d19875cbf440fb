"""Frames of several topics against bytes no writer of ours made: see `test_decoders.py`."""

from __future__ import annotations

from random import Random

from stratalog.format.control import encode_checkpoint, encode_reserve
from stratalog.format.frame import (
    HEADER_BYTES,
    FrameHeader,
    FrameType,
    body_checksum,
    check_body,
    decode_header,
    encode_header,
)
from stratalog.format.multi import decode_multi, inner_seed
from tests.fuzz.inputs import Fuzz, Outcome, mutate, some_number

SEED = 4096


def _inner(rng: Random) -> tuple[dict[str, int], bytes]:
    body = rng.choice((encode_reserve(7), encode_checkpoint(5, 64), b"", bytes(64)))
    fields = {
        "type": rng.choice((FrameType.RECORDS, FrameType.RESERVE, FrameType.CHECKPOINT)),
        "flags": 0,
        "body_length": len(body),
        "count": rng.randrange(9),
        "topic_id": rng.randrange(1 << 64),
        "base_offset": rng.randrange(1 << 40),
        "base_timestamp": 0,
        "max_timestamp": 0,
        "body_checksum": body_checksum(body),
    }
    return fields, body


def _forge(rng: Random, fields: dict[str, int]) -> dict[str, int]:
    """Something about an inner frame that is wrong under a right checksum."""
    name = rng.choice(("type", "unsynced", "body_length", "body_checksum", "flags"))
    bits = {"type": 8, "unsynced": 32, "body_length": 32, "body_checksum": 64, "flags": 16}[name]
    value = FrameType.MULTI if name == "type" and rng.random() < 0.5 else some_number(rng)
    return fields | {name: value & (1 << bits) - 1}


def test_a_forged_frame_of_several_topics_is_whole_or_refused(fuzz: Fuzz) -> None:
    """Inner frames cut, forged, sealed with the wrong seed, or other than as many as it says."""

    def check(rng: Random) -> Outcome:
        inner = [_inner(rng) for _ in range(rng.choice((0, 1, 1, 2, 3, 5)))]
        seed = inner_seed(SEED) if rng.random() < 0.95 else SEED
        frames = []
        for fields, body in inner:
            forged = _forge(rng, fields) if rng.random() < 0.1 else fields
            frames.append(encode_header(**forged, seed=seed) + body)
        data = b"".join(frames)
        if rng.random() < 0.3:
            data = mutate(rng, data)
        count = len(inner) + (rng.choice((-1, 1, 7)) if rng.random() < 0.1 else 0)
        topic_id = 0 if rng.random() < 0.95 else some_number(rng)
        header = FrameHeader(
            FrameType.MULTI, 0, len(data), count & 0xFFFFFFFF, topic_id & (1 << 64) - 1, 0, 0, 0,
            body_checksum(data), 0,
        )  # fmt: skip
        found = decode_multi(header, data, SEED)
        assert topic_id == 0
        assert len(found) == header.count > 0
        end = 0
        for position, one in found:
            assert position == end, "a part of the body is in no frame"
            assert one == decode_header(data, position, seed=inner_seed(SEED))
            check_body(one, data, position + HEADER_BYTES)
            assert one.type != FrameType.MULTI
            assert one.unsynced == 0
            end = position + HEADER_BYTES + one.body_length
        assert end == len(data)
        return "good"

    outcomes = fuzz.run(0.1, check)
    assert min(outcomes["good"], outcomes["CorruptionError"]) > outcomes.total() / 20
