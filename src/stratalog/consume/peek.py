"""Showing what would be delivered next, without delivering it."""

from __future__ import annotations

import numpy as np
from pyroaring import BitMap64

from stratalog.consume.fetch import fetch
from stratalog.log.topic import TopicLog
from stratalog.model import NO_LEASE, Delivery
from stratalog.state.delays import Delays
from stratalog.state.group_state import GroupState


def deliverable(state: GroupState, now: int, max_deliveries: int) -> dict[int, BitMap64]:
    """Return offsets that could be delivered now, by priority, for a group without consumers."""
    often = max_deliveries or 1 << 62  # beyond that it goes to the dead letters
    waiting = {priority: bits.copy() for priority, bits in state.waiting.items()}
    for offset, lease in state.pending.items():
        if lease.deadline <= now and lease.delivery_count < often:
            waiting.setdefault(lease.priority, BitMap64()).add(offset)
    if state.delays.next_due <= now:
        due = Delays.from_bytes(state.delays.to_bytes()).pop_due(now)
        for offset, priority in zip(due[0].tolist(), due[1].tolist(), strict=True):
            waiting.setdefault(priority, BitMap64()).add(offset)
    return waiting


def peek(topic: TopicLog, waiting: dict[int, BitMap64], limit: int, now: int) -> list[Delivery]:
    """Return the next records, most urgent first; expired ones are left out."""
    found: list[Delivery] = []
    for priority in sorted(waiting):
        bits = waiting[priority]
        while bits and len(found) < limit:
            chosen = bits[: limit - len(found)]
            bits = bits - chosen
            rows = fetch(topic, np.array(chosen.to_array(), np.int64), now)
            found += rows.deliveries(Delivery, None, NO_LEASE)
    return found
