"""The contract about Ctrl-C, held against the code: where it can come, and where not."""

from __future__ import annotations

import ast
import dis
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import NamedTuple

import pytest

import stratalog

PACKAGE = Path(stratalog.__file__).parent

# --- regions without a call ----------------------------------------------------------------------

BEGIN, END = "# Uninterruptible.", "# Interruptible."

# Each may be, or may come to, a call or a jump back: there the interpreter looks for signals.
LOOKS = (
    ast.Call, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Await, ast.Yield,
    ast.YieldFrom, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.FunctionDef,
    ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.Import, ast.ImportFrom, ast.Assert,
    ast.Raise, ast.JoinedStr, ast.Return,
)  # fmt: skip


def _regions(source: str) -> list[tuple[int, int]]:
    """First and last line of what stands between two marks; raises if they do not match."""
    marks = [
        (number, line.strip())
        for number, line in enumerate(source.splitlines(), 1)
        if line.strip() in (BEGIN, END)
    ]
    assert [text for _, text in marks] == [BEGIN, END] * (len(marks) // 2), "marks do not match"
    lines = [number for number, _ in marks]
    return list(zip(lines[::2], lines[1::2], strict=True))


def _interruptible(source: str) -> Iterator[str]:
    """Find calls in a marked region that may be interrupted."""
    regions = _regions(source)
    for node in ast.walk(ast.parse(source)) if regions else ():
        line = getattr(node, "lineno", 0)
        if isinstance(node, LOOKS) and any(first < line < last for first, last in regions):
            yield f"{line}: {type(node).__name__}"


def test_nothing_is_called_where_no_interrupt_may_come() -> None:
    """Between the marks are assignments, which the interpreter makes without a look for signals."""
    found = {
        str(path.relative_to(PACKAGE)): list(_interruptible(path.read_text()))
        for path in sorted(PACKAGE.rglob("*.py"))
        if BEGIN in path.read_text()
    }
    assert "log/append.py" in found
    assert {path: calls for path, calls in found.items() if calls} == {}


@pytest.mark.parametrize(
    "line",
    [
        "log.end = end()",
        "for x in y: z = x",
        "z = [x for x in y]",
        "with lock: z = 1",
        "z = f'{x}'",
    ],
)
def test_a_call_where_no_interrupt_may_come_is_found(line: str) -> None:
    """The rule above can fail, and marks that do not match are an error."""
    assert list(_interruptible(f"{BEGIN}\nlog.end = end\n{line}\n{END}\nlog.check()"))
    assert not list(_interruptible(f"{BEGIN}\nlog.end += end\n{END}\n{line}"))
    with pytest.raises(AssertionError, match="marks"):
        list(_interruptible(f"{BEGIN}\n{line}"))


# --- jumps that leave the block they are in ------------------------------------------------------
#
# CPython 3.13 and later look for signals before a jump back, and judge by the place of the jump
# which handlers apply. The compiler adds a jump for each condition that leads back to the begin of
# a loop, and leaves it out of the table of handlers (the interpreter's issue 130279): Ctrl-C in
# there passes by the `finally` or the `with` around the loop, and a lock stays locked. Earlier
# interpreters look for signals after the jump, and are not affected.


class Handler(NamedTuple):
    """An entry of the table of handlers."""

    start: int
    end: int
    target: int


def _handlers(code: CodeType) -> list[Handler]:
    """Decode `co_exceptiontable`: numbers of 6 bits a byte, most significant first."""
    numbers: list[int] = []
    value = 0
    for byte in code.co_exceptiontable:
        value = value << 6 | byte & 63
        if not byte & 64:
            numbers.append(value)
            value = 0
    return [
        Handler(start * 2, (start + length) * 2, target * 2)
        for start, length, target in zip(numbers[::4], numbers[1::4], numbers[2::4], strict=True)
    ]


def _around(handlers: list[Handler], place: int) -> Iterator[int]:
    """Where the handlers begin that an exception at a place comes to, innermost first."""
    while found := next((one for one in handlers if one.start <= place < one.end), None):
        yield (place := found.target)


def _takes_interrupts(code: list[dis.Instruction], target: int) -> bool:
    """Whether the handler of a `with`, a `finally` or an `except` is one of KeyboardInterrupt."""
    at = next(i for i, one in enumerate(code) if one.offset == target)
    if code[at].opname != "PUSH_EXC_INFO":
        return False  # the compiler's own: of a comprehension, a generator, or another handler
    while True:
        names = set()
        at += 1
        while code[at].opname.startswith(("LOAD", "BUILD_TUPLE", "PUSH_NULL")):
            names.add(code[at].argval)
            at += 1
        if code[at].opname != "CHECK_EXC_MATCH":
            return code[at].opname != "RERAISE"  # else it was the last `except`, and of another
        if names & {"BaseException", "KeyboardInterrupt"}:
            return True
        jump = next(one for one in code[at:] if one.opname.startswith("POP_JUMP"))
        at = next(i for i, one in enumerate(code) if one.offset == jump.argval) - 1


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _escapes(source: str, name: str = "<code>") -> Iterator[str]:
    """Jumps back that an interrupt would take past a handler around their loop."""
    for code in _codes(compile(source, name, "exec")):
        handlers = _handlers(code)
        instructions = list(dis.get_instructions(code)) if handlers else []
        for one in instructions:
            if one.opname != "JUMP_BACKWARD" or one.positions is None or not one.positions.lineno:
                continue
            here = set(_around(handlers, one.offset))
            for target in _around(handlers, one.argval):
                if target not in here and _takes_interrupts(instructions, target):
                    yield f"{name}:{one.positions.lineno} in {code.co_name}"


# What holds locks of a store that stays open. The others open one for a single command or job: an
# interrupt ends it, and what it leaves open is closed with the process.
ROOMS = {
    "aio", "backup", "consume", "fs", "handles", "log", "segments", "state", "testing", "upkeep",
}  # fmt: skip

affected = pytest.mark.skipif(
    sys.version_info < (3, 13), reason="looks for signals after a jump, where handlers apply"
)


@affected
def test_no_interrupt_passes_by_the_block_around_a_loop() -> None:
    """A loop with a condition at its end is in a function of its own, called by the block."""
    found = [
        escape
        for room in sorted(ROOMS)
        for path in sorted((PACKAGE / room).rglob("*.py"))
        for escape in _escapes(path.read_text(), str(path.relative_to(PACKAGE)))
    ]
    assert found == []


@affected
@pytest.mark.parametrize("loop", ["for x in y:\n  if x:\n   z()", "a = [x for x in y if x]"])
@pytest.mark.parametrize(
    ("block", "is_one"),
    [
        ("with lock:\n {}", True),
        ("try:\n {}\nfinally:\n b()", True),
        ("try:\n {}\nexcept BaseException:\n b()", True),
        ("try:\n {}\nexcept KeyError:\n b()", False),
        ("with lock:\n try:\n  pass\n except KeyError:\n  b()\ndef f(y):\n {}", False),
    ],
)
def test_a_jump_that_leaves_its_block_is_found(block: str, is_one: bool, loop: str) -> None:
    """The rule above can fail, and does not where nothing could be left undone."""
    assert bool(list(_escapes(block.format(loop)))) == is_one
