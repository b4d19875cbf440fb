"""Errors of Spark, each reduced to a sentence: without its plan and its stack."""

from __future__ import annotations

import re

_CAUSE = re.compile(r"^Caused by: (?:[\w.$]+: )?(.*?)(?=^\s+at |\Z)", re.MULTILINE | re.DOTALL)
_CLASS = re.compile(r"\[([A-Z][A-Z0-9_.]+)\] ")
_STACK = re.compile(r"\n\s+at |\n== SQL ==|;\s*line \d+ pos|\n'|\n\+-|\n\nJVM stacktrace")
_CHARACTERS_MAX = 500


def is_spark_error(error: BaseException) -> bool:
    """Return whether an error comes from Spark or its JVM."""
    return type(error).__module__.split(".")[0] in ("pyspark", "py4j")


def spark_sentence(error: BaseException | str) -> str:
    """Reduce a Spark error to its first sentence and the last cause it names, on one line."""
    text = str(error)
    named = _CLASS.search(text)
    first = _flat(_STACK.split(text[named.end() :] if named else text)[0])
    causes = [_flat(cause) for cause in _CAUSE.findall(text)]
    if causes and causes[-1] and causes[-1] not in first:
        first = f"{first.rstrip('.')}: {causes[-1]}"
    return first if len(first) <= _CHARACTERS_MAX else f"{first[:_CHARACTERS_MAX]}..."


def _flat(text: str) -> str:
    text = re.sub(r"\s*SQLSTATE: \w+|\s*\(line \d+, pos \d+\)", "", text)
    return " ".join(_CLASS.sub("", text).split())
