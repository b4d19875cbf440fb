"""One line of line protocol, read from left to right: knows what is wrong with it, and where."""

from __future__ import annotations

import re
from typing import Any, NoReturn

import numpy as np

from stratalog.errors import BadLineError, TooLargeError
from stratalog.format.points import FieldType, check_field_name, series_key
from stratalog.options import TIME_MAX

TRUE = (b"t", b"T", b"true", b"True", b"TRUE")
FALSE = (b"f", b"F", b"false", b"False", b"FALSE")

# An int64 holds 19 digits.
_INT = re.compile(rb"([-+]?[0-9]{1,25})([iu])")
_FLOAT = re.compile(rb"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_INT_MAX = (1 << 63) - 1


class Line:
    """One line, read from left to right."""

    def __init__(self, data: bytes, start: int, number: int) -> None:
        self.data = data
        self.start = self.position = start
        self.number = number

    def fail(self, what: str, position: int | None = None) -> NoReturn:
        """Say what is wrong, and where."""
        at = self.position if position is None else position
        column = len(self.data[self.start : at].decode("utf-8", "replace")) + 1
        end = self.data.find(b"\n", self.start)
        text = self.data[self.start : len(self.data) if end < 0 else end].decode("utf-8", "replace")
        shown = text if len(text) <= 80 else f"{text[:77]}..."
        raise BadLineError(
            f"Line {self.number}, column {column}: {what}. Nothing was written. The line is "
            f"{shown!r}.",
            self.number,
            column,
        )

    def peek(self) -> bytes:
        """The next byte; none at the end of the line."""
        byte = self.data[self.position : self.position + 1]
        return b"" if byte in (b"\n", b"\r") and self._is_end() else byte

    def _is_end(self) -> bool:
        rest = self.data[self.position : self.position + 2]
        return rest[:1] == b"\n" or rest == b"\r\n" or rest == b"\r"

    def skip_spaces(self) -> None:
        """Go to what is not a space."""
        while self.peek() == b" ":
            self.position += 1

    def name(self, what: str, ends: bytes) -> str:
        """Text up to one of these bytes, without the backslashes that took a meaning away."""
        first = self.position
        found = bytearray()
        while (byte := self.peek()) and byte not in ends:
            after = self.data[self.position + 1 : self.position + 2]
            if byte == b"\\" and after in b",= \\" and after:
                byte = after
                self.position += 1
            found += byte
            self.position += 1
        if not found:
            self.fail(f"{what} is missing", first)
        try:
            return found.decode()
        except UnicodeDecodeError:
            self.fail(f"{what} is not UTF-8", first)

    def expect(self, byte: bytes, what: str) -> None:
        """Pass over a byte that has to come."""
        if self.peek() != byte:
            self.fail(what)
        self.position += 1

    def head(self) -> tuple[str, bytes]:
        """The measurement, and the name of the series by its tags."""
        first = self.position
        measurement = self.name("the measurement", b", ")
        tags: dict[str, str] = {}
        while self.peek() == b",":
            self.position += 1
            at = self.position
            tag = self.name("the name of a tag", b",= ")
            self.expect(b"=", f"an equals sign has to follow the tag {tag!r}")
            if tag in tags:
                self.fail(f"the tag {tag!r} is there twice", at)
            tags[tag] = self.name(f"the value of tag {tag!r}", b",= ")
        if self.peek() not in (b"", b" "):
            self.fail("a comma or a space has to follow a tag")
        try:
            return measurement, series_key(tags)
        except TooLargeError as error:
            self.fail(str(error).rstrip("."), first)

    def fields(self) -> dict[str, tuple[FieldType, Any, int]]:
        """Type, value and position of each field."""
        found: dict[str, tuple[FieldType, Any, int]] = {}
        while True:
            at = self.position
            name = self.name("the name of a field", b",= ")
            self.expect(b"=", f"an equals sign has to follow the field {name!r}")
            if name in found:
                self.fail(f"the field {name!r} is there twice", at)
            try:
                check_field_name(name)
            except TooLargeError as error:
                self.fail(str(error).rstrip("."), at)
            at = self.position
            found[name] = (*self._value(name), at)
            if self.peek() != b",":
                return found
            self.position += 1

    def _value(self, name: str) -> tuple[FieldType, Any]:
        if self.peek() == b'"':
            return FieldType.TEXT, self._text()
        first = self.position
        while (byte := self.peek()) and byte not in b", ":
            self.position += 1
        token = self.data[first : self.position]
        if token in TRUE or token in FALSE:
            return FieldType.BOOL, token in TRUE
        match = _INT.fullmatch(token)
        if match is not None:
            number = int(match[1])
            if not -_INT_MAX - 1 <= number <= _INT_MAX or (match[2] == b"u" and number < 0):
                self.fail(f"the field {name!r} does not fit into 64 bits", first)
            return FieldType.INT, number
        if _FLOAT.fullmatch(token) is not None:
            value = float(token)
            if not np.isfinite(value):
                self.fail(f"the field {name!r} is too large", first)
            return FieldType.FLOAT, value
        wrong = "is no number, bool, or text in double quotes" if token else "is missing"
        return self.fail(f"the value of field {name!r} {wrong}", first)

    def _text(self) -> str:
        first = self.position
        self.position += 1
        found = bytearray()
        while True:  # a text may have line breaks
            byte = self.data[self.position : self.position + 1]
            if not byte:
                self.fail("the text is not closed by a double quote", first)
            self.position += 1
            if byte == b'"':
                break
            after = self.data[self.position : self.position + 1]
            if byte == b"\\" and after and after in b'"\\':
                byte = after
                self.position += 1
            found += byte
        try:
            return found.decode()
        except UnicodeDecodeError:
            self.fail("the text is not UTF-8", first)

    def time(self, unit: int) -> int | None:
        """Nanoseconds, if there is a time; and nothing comes after it."""
        self.skip_spaces()
        first = self.position
        while (byte := self.peek()) and byte != b" ":
            self.position += 1
        token = self.data[first : self.position]
        self.skip_spaces()
        if self.peek():
            self.fail("nothing may follow the time")
        if not token:
            return None
        if not re.fullmatch(rb"-?[0-9]{1,25}", token):
            self.fail("the time is not a whole number", first)
        if not 0 <= int(token) <= TIME_MAX // unit:
            self.fail("the time is before 1970 or after 2230: is the precision right?", first)
        return int(token) * unit
