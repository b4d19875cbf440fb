"""A declared pipeline: a TOML file that names sources, steps and sinks, checked before Spark runs.

Every error names the file and the line.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from stratalog.errors import OptionError

_HEADER = re.compile(r"\s*\[\s*([^\]]+?)\s*\]")
_KEY = re.compile(r"""\s*(?:"([^"]+)"|'([^']+)'|([A-Za-z0-9_-]+))\s*[=.]""")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_URL = re.compile(r"[a-z][a-z0-9+.-]*:")

_TOP = ("name", "sinks", "sources", "spark", "steps", "storage")
_SOURCE = (
    "format", "options", "path", "queue", "schema", "series", "stream", "table", "topic",
)  # fmt: skip
_STEP = ("inputs", "python", "sql")
_SINK = ("format", "from", "options", "path", "table", "topic")

VIEWS = ("queue", "table", "series")
"""Kinds of sources that are computed from the records of a topic, and read whole."""


@dataclass(frozen=True)
class Source:
    """The origin of rows: a topic, a view of one, or anything Spark can read."""

    name: str
    line: int
    format: str
    options: dict[str, str]
    schema: str | None
    is_stream: bool

    @property
    def view(self) -> str | None:
        """The kind of a source that is computed from records; None for other sources."""
        kinds = [kind for kind in VIEWS if self.format == "stratalog" and kind in self.options]
        return kinds[0] if kinds else None


@dataclass(frozen=True)
class Step:
    """A transformation: a query, or a function of DataFrames."""

    name: str
    line: int
    """Line of the query's first line, or of the function's name."""
    sql: str | None
    python: tuple[str, str] | None
    """A file, and a function in it."""
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class Sink:
    """The destination of the rows of a step or a source."""

    name: str
    line: int
    source: str
    format: str
    options: dict[str, str]


@dataclass(frozen=True)
class Pipeline:
    """A file that passed every check that needs no Spark."""

    path: str
    name: str
    storage: str
    config: dict[str, str]
    sources: tuple[Source, ...]
    steps: tuple[Step, ...]
    sinks: tuple[Sink, ...]

    def error(self, line: int, text: str) -> OptionError:
        """Build an error about a line of the file."""
        return OptionError(f"{self.path}, line {line}: {text}")

    def step(self, name: str) -> Step | None:
        """Return the step of that name, if there is one."""
        return next((step for step in self.steps if step.name == name), None)


def load_pipeline(path: str | os.PathLike[str], text: str) -> Pipeline:
    """Parse the pipeline in `text`, from the file at `path`."""
    path = os.path.abspath(os.fspath(path))
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        line = found[1] if found else str(text.count("\n") + 1)
        what = str(error).split(" (at ")[0]
        raise OptionError(f"{path}, line {line}: this is not TOML: {what}") from None
    return _Checker(path, text).check(data)


@dataclass
class _Checker:
    path: str
    text: str
    lines: dict[tuple[str, ...], int] = field(default_factory=dict)

    def check(self, data: dict[str, Any]) -> Pipeline:
        self.lines = _lines(self.text)
        self._known((), data, _TOP)
        for section in ("sources", "sinks"):
            if not self._table((section,), data.get(section, {})):
                raise self._error((section,), f"a pipeline needs [{section}.NAME]: there is none")
        sources = tuple(self._source(*item) for item in data["sources"].items())
        steps = tuple(
            self._step(*item) for item in self._table(("steps",), data.get("steps", {})).items()
        )
        names = [source.name for source in sources] + [step.name for step in steps]
        for step in steps:
            if step.name in {source.name for source in sources}:
                raise self._error(
                    ("steps", step.name), f"{step.name!r} is a source already: name the step anew"
                )
            for name in step.inputs:
                self._refer(("steps", step.name, "inputs"), name, names)
        sinks = tuple(self._sink(*item) for item in data["sinks"].items())
        for sink in sinks:
            self._refer(("sinks", sink.name, "from"), sink.source, names)
        stem = os.path.splitext(os.path.basename(self.path))[0]
        name = self._text(("name",), data.get("name", stem))
        storage = self._text(("storage",), data.get("storage", f"{stem}.state"))
        config = self._options(("spark",), data.get("spark", {}))
        return Pipeline(self.path, name, self._place(storage), config, sources, steps, sinks)

    def _source(self, name: str, table: Any) -> Source:
        where = ("sources", name)
        self._named(where, table, _SOURCE)
        format, options = self._address(where, table, ("topic", *VIEWS))
        view = next((kind for kind in VIEWS if kind in table), None)
        is_stream = table.get("stream", view is None)
        if not isinstance(is_stream, bool):
            raise self._error((*where, "stream"), "stream is true or false")
        schema = table.get("schema")
        if schema is not None:
            self._text((*where, "schema"), schema)
        if view is not None and (is_stream or schema is not None):
            key = "stream" if is_stream else "schema"
            raise self._error(
                (*where, key),
                f"a {view} is read whole, with columns of its own: leave {key} out, or read the "
                f"changes of it with topic = {options[view]!r}",
            )
        return Source(name, self._line(where), format, options, schema, is_stream)

    def _step(self, name: str, table: Any) -> Step:
        where = ("steps", name)
        self._named(where, table, _STEP)
        if ("sql" in table) == ("python" in table):
            raise self._error(
                where, 'a step has one of sql = "SELECT ..." and python = "FILE:NAME"'
            )
        key = "sql" if "sql" in table else "python"
        line = self._line((*where, key))
        text = self._text((*where, key), table[key])
        inputs = table.get("inputs", [])
        if not isinstance(inputs, list) or not all(isinstance(item, str) for item in inputs):
            raise self._error((*where, "inputs"), 'inputs is a list of names: ["orders"]')
        if key == "sql":
            if inputs:
                raise self._error(
                    (*where, "inputs"), "a query names its own inputs: STREAM(orders), or countries"
                )
            # A text in triple quotes usually begins on the line after them.
            return Step(name, line + _opening(self.text, line), text, None, ())
        file, _, function = text.rpartition(":")
        if not file or not _NAME.fullmatch(function):
            raise self._error((*where, key), f'python = "FILE:NAME" names a function, not {text!r}')
        if not inputs:
            raise self._error(where, f"{function} needs inputs = [...]: the DataFrames it is given")
        return Step(name, line, None, (self._place(file), function), tuple(inputs))

    def _sink(self, name: str, table: Any) -> Sink:
        where = ("sinks", name)
        self._named(where, table, _SINK)
        if "from" not in table:
            raise self._error(where, 'a sink needs from = "NAME": a step, or a source')
        format, options = self._address(where, table, ("topic", "table"))
        source = self._text((*where, "from"), table["from"])
        return Sink(name, self._line(where), source, format, options)

    def _address(
        self, where: tuple[str, ...], table: dict[str, Any], kinds: tuple[str, ...]
    ) -> tuple[str, dict[str, str]]:
        """Check the format and options of a source or a sink of one of these kinds."""
        given = [kind for kind in kinds if kind in table]
        if not given and "format" not in table:
            raise self._error(where, 'it needs topic = "NAME" with path = "STORE", or a format')
        if len(given) > 1:
            raise self._error((*where, given[1]), f"give one of {' and '.join(given)}")
        format = self._text((*where, "format"), table.get("format", "stratalog"))
        options = self._options((*where, "options"), table.get("options", {}))
        for key in (*given, "path"):
            if key in table:
                options[key] = self._text((*where, key), table[key])
        if format == "stratalog":
            kind = next((kind for kind in kinds if kind in options), None)
            for key in ("topic", "path"):
                if key not in options and (key == "path" or kind is None):
                    raise self._error(where, f"a {kind or 'topic'} needs its {key}")
        elif given and given != ["topic"]:
            raise self._error(
                (*where, given[0]), f"{given[0]} is of a store of Stratalog: leave format out"
            )
        if "path" in options:
            options["path"] = self._place(options["path"])
        return format, options

    # --- values ---------------------------------------------------------------------------

    def _named(self, where: tuple[str, ...], table: Any, known: Iterable[str]) -> None:
        if not _NAME.fullmatch(where[-1]):
            raise self._error(
                where, f"{where[-1]!r} is no name for SQL: letters, digits and underscores"
            )
        self._known(where, self._table(where, table), known)

    def _known(self, where: tuple[str, ...], table: dict[str, Any], known: Iterable[str]) -> None:
        for key in table:
            if key not in known:
                close = difflib.get_close_matches(key, known, n=1)
                hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
                raise self._error((*where, key), f"unknown key {key!r}: {hint}")

    def _table(self, where: tuple[str, ...], value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._error(where, f"{'.'.join(where)} is a table: [{'.'.join(where)}]")
        return value

    def _text(self, where: tuple[str, ...], value: Any) -> str:
        if not isinstance(value, str) or not value.strip():
            raise self._error(where, f"{where[-1]} is a text, not {value!r}")
        return value

    def _options(self, where: tuple[str, ...], value: Any) -> dict[str, str]:
        options = {}
        for key, item in self._table(where, value).items():
            if isinstance(item, bool):
                options[key] = str(item).lower()
            elif isinstance(item, str | int | float):
                options[key] = str(item)
            else:
                raise self._error((*where, key), f"{key} is a text or a number, not {item!r}")
        return options

    def _refer(self, where: tuple[str, ...], name: str, names: list[str]) -> None:
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(names)}"
            raise self._error(where, f"no source or step is named {name!r}: {hint}")

    def _place(self, path: str) -> str:
        """Resolve a relative path against the file's directory."""
        if _URL.match(path):
            return path
        return os.path.normpath(os.path.join(os.path.dirname(self.path), path))

    def _line(self, where: tuple[str, ...]) -> int:
        """Return the line of a key, or of its table if it is written in an unusual way."""
        while where and where not in self.lines:
            where = where[:-1]
        return self.lines.get(where, 1)

    def _error(self, where: tuple[str, ...], text: str) -> OptionError:
        return OptionError(f"{self.path}, line {self._line(where)}: {text}")


def _lines(text: str) -> dict[tuple[str, ...], int]:
    """Find the lines of tables and their keys, in their usual notation."""
    lines: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    quotes = ""
    for number, line in enumerate(text.splitlines(), 1):
        if quotes:  # inside of a multi-line string
            quotes = "" if quotes in line else quotes
            continue
        if found := _HEADER.match(line):
            table = tuple(part.strip().strip("\"'") for part in found[1].split("."))
            for depth in range(1, len(table) + 1):
                lines.setdefault(table[:depth], number)
        elif found := _KEY.match(line):
            lines.setdefault((*table, found[1] or found[2] or found[3]), number)
            for mark in ('"""', "'''"):
                if line.count(mark) == 1:
                    quotes = mark
    return lines


def _opening(text: str, line: int) -> int:
    """Return 1 if the string on this line begins with a line break, which TOML drops."""
    return int(text.splitlines()[line - 1].rstrip().endswith(('"""', "'''")))
