"""How much code a delivery runs through: a limit on calls, which no machine's speed changes."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

from tests.conftest import OpenStore

import stratalog
from stratalog.handles.queue import Queue

PACKAGE = str(Path(stratalog.__file__).parent)

# Half of what it was: 296 calls through 34 modules, because each record was read twice, the memory
# accounted for twice, and lengths asked for a dozen times. On CPython 3.11; later ones take less,
# where a comprehension is not a call.
CALLS_MAX = 148


def _calls(queue: Queue) -> list[str]:
    """Every call of a function of the package, but for the test kit's disk, during one `get`."""
    found: list[str] = []

    def count(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            name = code.co_filename.removeprefix(PACKAGE + "/")
            if not name.startswith("testing/"):
                found.append(f"{name}: {code.co_name}")

    sys.setprofile(count)
    try:
        queue.get(timeout=0)
    finally:
        sys.setprofile(None)
    return found


def test_the_first_delivery_takes_few_calls(open_store: OpenStore, tmp_path: Path) -> None:
    """From the handle to the disk and back, for a message that was never read before."""
    for name in ("warm", "measured"):  # the first time, modules are imported
        queue = open_store(tmp_path / name, background=False).queue("jobs")
        queue.put(b"message")
        calls = _calls(queue)
    assert len(calls) <= CALLS_MAX, "\n".join(calls)
    assert len(calls) > 50  # or the profile has seen nothing


def test_a_message_is_read_once(open_store: OpenStore) -> None:
    """The record that was read for its priority is delivered without another read."""
    queue = open_store(background=False).queue("jobs")
    queue.put(b"message", priority=3)
    assert _calls(queue).count("format/batch.py: parse") == 1
