"""Ctrl-C at a chosen moment: after so many bytecodes, and where Python itself would raise it."""

from __future__ import annotations

import _thread
import dis
import functools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

# Never ends, because that returns None. Called by a `for`: after a call of ours Python would look
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
            # CPython 3.12 traces opcodes only if one frame asked for it before tracing begins.
            sys._getframe().f_trace_opcodes = True
            sys.settrace(self._tracer)
            action()
        except (Exception, KeyboardInterrupt):
            pass
        finally:
            sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        # CPython 3.12 and later trace no opcodes where lines are not traced, and 3.13 and later
        # only those of a frame that has a trace function by the time it is asked for them.
        frame.f_trace = self._count
        frame.f_trace_opcodes = True
        return self._count

    def _count(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode" and not self.came:
            self._left -= 1
            if self._left <= 0 and not enters_block(frame):
                self.came = True
                sys.settrace(None)
                for _ in _MAKE_PENDING:
                    return None
        return self._count


def enters_block(frame: FrameType | None) -> bool:
    """Whether the interrupt would come as a `with` was entered, where no program can handle it.

    CPython 3.14 looks for signals once `__enter__` has returned, and only then is `__exit__` bound
    to be called (the interpreter's issue 148874). It comes one opcode later instead.
    """
    if sys.version_info < (3, 14) or frame is None:
        return False
    look = _looks(frame.f_code).get(frame.f_lasti, ("", ""))[0]
    while look == "return" and (frame := frame.f_back) is not None:
        look = _looks(frame.f_code).get(frame.f_lasti, ("", ""))[1]
    return look == "enter"


@functools.cache
def _looks(code: CodeType) -> dict[int, tuple[str, str]]:
    """Which opcode may be the next that looks for signals, from each place on and after it.

    An `enter` is the call that enters a `with`, and after a `return` it is one of the caller's.
    """
    looks: dict[int, tuple[str, str]] = {}
    instructions = list(dis.get_instructions(code))
    after = ""
    for index in reversed(range(len(instructions))):
        one = instructions[index]
        look = after
        if one.opname.startswith(("CALL", "JUMP_BACKWARD", "RESUME", "SEND")):
            is_enter = one.arg == 0 and instructions[index - 1].opname == "LOAD_SPECIAL"
            look = "enter" if is_enter else ""
        elif one.opname.startswith(("RETURN", "YIELD")):
            look = "return"
        elif one.opname.startswith("JUMP"):
            look = looks[one.argval][0]
        elif one.opname.startswith(("POP_JUMP", "FOR_ITER")):
            look = max(look, looks[one.argval][0], key=("", "return", "enter").index)
        looks[one.offset] = look, after
        after = look
    return looks


def _raise(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
