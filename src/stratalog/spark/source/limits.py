"""How much of its topics a micro-batch takes, where that is limited: each topic has its share."""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.log.topic import TopicLog
from stratalog.spark.source.plan import Range, Span, cut_span, spans_of


def limited(starts: dict[str, int], ends: dict[str, int], most: int) -> dict[str, int]:
    """Ends that are at most so many offsets away, every topic with its share.

    One that has little to give gets on too, beside one that always has more than the limit.
    """
    wanted = {name: end - starts[name] for name, end in ends.items() if end > starts[name]}
    total = sum(wanted.values())
    if total <= most:
        return ends
    turn = sum(starts.values()) % len(wanted)  # in turns, if there are more topics than offsets
    names = [*wanted][turn:] + [*wanted][:turn]
    taken = {name: int(number < most) for number, name in enumerate(names)}
    left = most - sum(taken.values())
    rest = max(1, total - sum(taken.values()))
    for name in names:
        taken[name] += left * (wanted[name] - taken[name]) // rest
    left = most - sum(taken.values())  # what rounding left
    for name in names:
        more = min(left, wanted[name] - taken[name])
        taken[name] += more
        left -= more
    return ends | {name: starts[name] + count for name, count in taken.items()}


def limited_by_bytes(
    topics: Sequence[TopicLog], starts: dict[str, int], ends: dict[str, int], most: int
) -> dict[str, int]:
    """Ends up to which there are about so many bytes, every topic with its share.

    A batch is read as a whole, so there may be a batch more; and one at least, or nothing would
    ever be read.
    """
    spans = {
        topic.name: list(
            spans_of(Range(topic, max(starts[topic.name], topic.earliest), ends[topic.name]))
        )
        for topic in topics
        if ends[topic.name] > starts[topic.name]
    }
    sizes = {name: sum(span.size for span in parts) for name, parts in spans.items()}
    total = sum(sizes.values())
    if total <= most:
        return ends
    turn = sum(starts.values()) % len(spans)  # in turns, if a batch of each is too much
    names = [*spans][turn:] + [*spans][:turn]
    found = ends | {name: starts[name] for name in names}
    left = most
    for name in names:
        if left <= 0:
            break
        share = min(left, max(1, most * sizes[name] // total))
        found[name], taken = _cut(spans[name], starts[name], share)
        left -= taken
    return found


def _cut(spans: Sequence[Span], start: int, size: int) -> tuple[int, int]:
    """Where about so many bytes end, and how many they are; with one batch at least."""
    end, taken = start, 0
    for span in spans:
        if end > start and taken >= size:
            break
        part, rest = (span, None) if span.size <= size - taken else cut_span(span, size - taken)
        end, taken = part.end, taken + part.size
        if rest is not None:
            break
    return end, taken
