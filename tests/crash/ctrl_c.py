"""Ctrl-C at a chosen moment: after so many bytecodes, and where Python itself would raise it."""

from __future__ import annotations

import _thread
import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

# Never ends, because that returns None. Called by a `for`: behind a call of ours Python would look
# for signals, and raise it in here.
_MAKE_PENDING = iter(_thread.interrupt_main, 1)


def moments(step: int, finest: int = 1) -> Iterator[int]:
    """Every so-manieth bytecode, or every `finest` if the sweep is to be exhaustive; without end.

    A call takes 20 to 40 of them, and Python looks for signals at its end: 7 miss few.
    """
    step = finest if os.environ.get("STRATALOG_SWEEP") == "exhaustive" else step
    number = step
    while True:
        yield number
        number += step


class CtrlC:
    """Interrupts what it runs once, after `at` bytecodes; `came` says whether it ran that long."""

    def __init__(self, at: int) -> None:
        self._left = at
        # Held here: CPython 3.11 does not hold it while it calls it.
        self._tracer = self._trace
        self.came = False

    def run(self, action: Callable[[], object]) -> None:
        """Do it; the interrupt, or whatever else it raises, goes no further."""
        before = signal.signal(signal.SIGINT, _raise)
        try:
            self._run(action)
        except KeyboardInterrupt:  # it came late
            pass
        finally:
            signal.signal(signal.SIGINT, before)

    def _run(self, action: Callable[[], object]) -> None:
        try:
            sys.settrace(self._tracer)
            action()
        except (Exception, KeyboardInterrupt):
            pass
        finally:
            sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._count

    def _count(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode" and not self.came:
            self._left -= 1
            if not self._left:
                self.came = True
                sys.settrace(None)
                for _ in _MAKE_PENDING:
                    return None
        return self._count


def _raise(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
