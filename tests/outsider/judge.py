"""Holding a store that was mutated against what was acknowledged, before and after repair."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from stratalog import Gap, Store, StratalogError, repair, verify
from stratalog.errors import UnknownTopicError
from stratalog.options import StoreOptions
from stratalog.tools.report import Report
from tests.outsider.stores import OPTIONS, Scene, Topic

# Far more than any of these stores takes; what is not done by then never is.
_SECONDS_MAX = 60


class HangError(BaseException):
    """Something went on for ever; no `Exception`, so that nothing takes it for an error."""


@dataclass(slots=True)
class Verdict:
    """The result of one mutation."""

    outcome: str = ""
    violations: list[str] = field(default_factory=list)

    def broken(self, what: str) -> None:
        """Note a promise that was not kept."""
        self.violations.append(what)


@contextlib.contextmanager
def bounded(seconds: int = _SECONDS_MAX) -> Iterator[None]:
    """Raise `HangError` in a block that takes longer."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise HangError(f"not done after {seconds} seconds")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def judge(root: Path, scene: Scene) -> Verdict:
    """Look at a mutated store, repair it, and look again."""
    verdict = Verdict()
    try:
        with bounded():
            _judge(root, scene, verdict)
    except StratalogError as error:
        verdict.outcome = f"refused: {type(error).__name__}"
        if not str(error):
            verdict.broken("an error without a word")
    except HangError as error:
        verdict.outcome = "hang"
        verdict.broken(f"hang: {error}")
    except Exception as error:
        verdict.outcome = "untyped"
        verdict.broken(f"untyped: {type(error).__name__}: {error}")
        verdict.violations[-1] += _where(error)
    return verdict


def _where(error: BaseException) -> str:
    trace = error.__traceback__
    last = ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if "stratalog" in code.co_filename:
            last = f" [{code.co_filename.rsplit('stratalog/', 1)[-1]}:{trace.tb_lineno}]"
        trace = trace.tb_next
    return last


def _judge(root: Path, scene: Scene, verdict: Verdict) -> None:
    found = _verified(root, verdict)
    try:
        damage = _look(root, scene, verdict, "before", found, None)
    except StratalogError as error:
        damage = str(error)
    if found is not None and found.ok and damage:
        verdict.broken(f"verify says ok, opening says: {damage}")
    plan = repair(root, dry_run=True)
    if found is not None and [str(p) for p in plan.problems] != [str(p) for p in found.problems]:
        verdict.broken(f"verify and repair disagree: {found.problems} {plan.problems}")
    report = repair(root)
    if [one.kind for one in plan.actions] != [one.kind for one in report.actions]:
        verdict.broken(f"the dry run said {plan.actions}, what was done is {report.actions}")
    if found is not None and found.ok and report.actions:
        verdict.broken(f"verify says ok, repair did: {report.actions}")
    if not report.ok:
        verdict.outcome = "not repaired: " + ", ".join(
            sorted({note.split(":")[1].strip() for note in report.notes if "still wrong" in note})
        )
        if all(p.repair.startswith("nothing: restore the file") for p in verify(root).problems):
            # A staged segment that was adopted, and that no checkpoint has reached: it is named,
            # nothing of it is served, and it may come back from a copy.
            verdict.outcome = "left: a staged segment"
            return
        verdict.broken(f"repair did not succeed: {report.notes or report.problems}")
        return
    again = repair(root)
    if again.actions or not again.ok:
        verdict.broken(f"a second repair did: {again.actions} {again.problems}")
    after = verify(root)
    if not after.ok:
        verdict.broken(f"after repair, verify says: {after.problems}")
    damage = _look(root, scene, verdict, "after", after, report)
    if damage:
        verdict.broken(f"after repair, opening says: {damage}")
    if verdict.outcome:
        return
    if not report.problems:
        verdict.outcome = "no harm"
    elif any(action.lost for action in report.actions):
        verdict.outcome = "repaired, loss told"
    else:
        verdict.outcome = "repaired, nothing lost"


def _verified(root: Path, verdict: Verdict) -> Report | None:
    try:
        return verify(root)
    except StratalogError as error:
        verdict.outcome = f"refused: {type(error).__name__}"
        raise


def _look(
    root: Path, scene: Scene, verdict: Verdict, when: str, found: Report | None,
    report: Report | None,
) -> str | None:  # fmt: skip
    """Open a store as a reader, then as a writer, and read everything; returns what is damaged."""
    options = StoreOptions.build(OPTIONS, {})
    damage = None
    for read_only in (True, False):
        # A writer changes what it opens: before a repair only one that opens read-only is let in.
        if not read_only and report is None:
            break
        store = Store(root, options, read_only=read_only, background=False)
        try:
            damage = damage or store.damage
            told = damage if report is None else None
            if report is None and found is not None and not found.ok:
                told = told or str(found)  # a torn tail is reported, and cut when it is opened
            _read_all(store, scene, verdict, when, told, report)
            if not read_only and not damage:
                _write_all(store, verdict)
        finally:
            store.close()
    if report is not None and not damage:
        closing = verify(root)
        if not closing.ok:
            verdict.broken(f"after appends, verify says: {closing.problems}")
    return damage


def _write_all(store: Store, verdict: Verdict) -> None:
    for name in store.topics():
        topic = store.topic(name)
        if topic.log.kind == "queue":
            queue = store.queue(name)
            queue.put(b"goes on")
            queue.ack(*queue.get_many(3, timeout=0))
            continue
        offset = topic.append(b"goes on", key=b"new")
        if next(iter(topic.read_values(offset, limit=1)), None) != b"goes on":
            verdict.broken(f"{name}: what was appended after repair is not what is read")
    store.snapshot()


def _read_all(
    store: Store, scene: Scene, verdict: Verdict, when: str, damage: str | None,
    report: Report | None,
) -> None:  # fmt: skip
    ids = {log.id: log for log in store._catalog.topics()}
    for topic in scene.topics.values():
        log = ids.get(topic.id)
        if log is None:
            if damage is None and not _told(report):
                verdict.broken(f"{when}: topic {topic.name} is gone and nothing says so")
            continue
        _read_topic(store, log.name, topic, verdict, when, damage, report)


def _told(report: Report | None) -> bool:
    return report is not None and any(action.lost for action in report.actions)


def _read_topic(
    store: Store, name: str, topic: Topic, verdict: Verdict, when: str, damage: str | None,
    report: Report | None,
) -> None:  # fmt: skip
    handle = store.topic(name)
    end = handle.next_offset
    accounted: set[int] = set()
    errors = 0
    start = handle.earliest if report is None else 0
    accounted |= set(range(start))
    start = 0
    while start < end:
        try:
            for item in handle.read(start):
                if isinstance(item, Gap):
                    accounted |= set(range(item.first, item.last + 1))
                    start = item.last + 1
                    continue
                if item.offset < start:
                    verdict.broken(f"{when}: {name}: offset {item.offset} comes after {start - 1}")
                    return
                start = item.offset + 1
                accounted.add(item.offset)
                _compare(item.offset, item.value, name, topic, verdict, when, report)
            break
        except UnknownTopicError:
            raise
        except StratalogError as error:
            errors += 1
            accounted.add(start)
            start += 1
            if report is not None:
                verdict.broken(f"{when}: {name}: reading raises {error}")
                return
    lost = sorted(topic.needed - accounted)
    inside = [offset for offset in lost if offset < end]
    if inside:
        verdict.broken(f"{when}: {name}: silent loss of {_short(inside)} (end {end})")
    tail = [offset for offset in lost if offset >= end]
    if tail and damage is None and not _told(report):
        verdict.broken(f"{when}: {name}: silent loss of the tail {_short(tail)} (end {end})")


def _compare(
    offset: int, value: bytes | None, name: str, topic: Topic, verdict: Verdict, when: str,
    report: Report | None,
) -> None:  # fmt: skip
    if offset >= len(topic.values):
        if value not in (b"goes on",) and not (value or b"").startswith(b"ours staged"):
            verdict.broken(f"{when}: {name}: offset {offset} was never given out: {value!r}")
    elif value != topic.values[offset]:
        if value == b"goes on" and _told(report):
            return  # an offset of a tail that is told to be lost
        verdict.broken(
            f"{when}: {name}: wrong record {offset}: {value!r}, not {topic.values[offset]!r}"
        )
    elif offset in topic.deleted and not _told(report):
        verdict.broken(f"{when}: {name}: deleted record {offset} came back")


def _short(offsets: list[int]) -> str:
    return f"{len(offsets)} records {offsets[0]}..{offsets[-1]}"
