r"""Line protocol: `cpu,host=a user=72.5,system=7.4 1708700400000` to points by column.

A line has a measurement, tags, fields and a time, which may be left out. A backslash before a
comma, an equals sign, a space or a backslash takes its meaning away, in names and tags. A field is
a float (`72.5`), an int (`72i` or `72u`), a bool (`t`, `true`, `f`, `false` and in capitals), or
text in double quotes, with a backslash before a quote or a backslash in it. Lines that are empty or
begin with `#` are passed over.

Three ways come to the same, which a test shows:

| way | for | lines a second, two fields |
|---|---|---|
| `_parse_alike` | lines of one shape, without escapes: Arrow's CSV parser | 3,000,000 |
| `_parse_matches` | everything that is right: two regular expressions, then columns | 500,000 |
| `_parse_each` | whatever the others leave: knows where a line is wrong | 20,000 |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stratalog.errors import BadLineError, OptionError, TooLargeError, WrongTypeError
from stratalog.format.line import FALSE, TRUE, Line
from stratalog.format.points import (
    DTYPES,
    Column,
    FieldType,
    Int64s,
    check_field_name,
    combine_tags,
)
from stratalog.options import TIME_MAX

if TYPE_CHECKING:
    import pyarrow as pa

PRECISIONS = {
    "ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9,
}  # fmt: skip


class Rows(NamedTuple):
    """Points of one measurement, in the order of their lines."""

    series: list[bytes]
    codes: npt.NDArray[Any]
    """For each point, which of the series it is of."""
    times: Int64s
    fields: dict[str, Column]
    lines: Int64s | None = None
    """The line of each point, from 0; None if they follow each other."""

    def line(self, place: int) -> int:
        """The line of a point, from 1."""
        return 1 + (place if self.lines is None else int(self.lines[place]))


def parse_lines(data: str | bytes, precision: str = "ns", now: int = 0) -> dict[str, Rows]:
    """Points by measurement; raises `BadLineError` if one line is wrong.

    A line without a time gets `now`, in nanoseconds.
    """
    if precision not in PRECISIONS:
        raise OptionError(
            f"precision={precision!r} is not known: use one of {', '.join(PRECISIONS)}"
        )
    if isinstance(data, str):
        try:
            data = data.encode()
        except UnicodeEncodeError as error:
            raise OptionError(f"The lines cannot be written as UTF-8: {error}") from None
    elif not isinstance(data, bytes):
        raise WrongTypeError(f"lines are text or bytes, not {type(data).__name__}")
    unit = PRECISIONS[precision]
    found = _parse_alike(data, unit)
    if found is None:
        found = _parse_matches(data, unit, now)
    if found is None:
        found = _parse_each(data, unit, now)
    return found


# --- line by line: the one that says what is wrong ----------------------------------------


class _Gathered:
    """Points of one measurement, line by line."""

    def __init__(self) -> None:
        self.codes: dict[bytes, int] = {}
        self.series: list[int] = []
        self.times: list[int] = []
        self.lines: list[int] = []
        self.fields: dict[str, tuple[FieldType, dict[int, Any]]] = {}

    def add(self, line: Line, key: bytes, fields: Mapping[str, Any], time: int) -> None:
        """Take a line in."""
        place = len(self.times)
        self.series.append(self.codes.setdefault(key, len(self.codes)))
        self.times.append(time)
        self.lines.append(line.number - 1)
        for name, (type, value, position) in fields.items():
            known, values = self.fields.setdefault(name, (type, {}))
            if known != type:
                if {known, type} != {FieldType.INT, FieldType.FLOAT}:
                    line.fail(
                        f"the field {name!r} is {type.name.lower()} here, and was "
                        f"{known.name.lower()} in a line before",
                        position,
                    )
                self.fields[name] = FieldType.FLOAT, values
            values[place] = value

    def rows(self) -> Rows:
        """All of it by column."""
        count = len(self.times)
        fields = {}
        for name, (type, values) in self.fields.items():
            places = np.fromiter(values, np.int64, len(values))
            column = np.zeros(count, DTYPES[type])
            column[places] = np.array(list(values.values()), DTYPES[type])
            fields[name] = _with_lacking(type, column, places, count)
        return Rows(
            list(self.codes), np.array(self.series), np.array(self.times, np.int64), fields,
            np.array(self.lines, np.int64),
        )  # fmt: skip


def _with_lacking(type: FieldType, values: npt.NDArray[Any], places: Int64s, count: int) -> Column:
    if len(places) == count:
        return Column(type, values)
    valid = np.zeros(count, np.bool_)
    valid[places] = True
    if type == FieldType.TEXT:
        values[~valid] = ""
    return Column(type, values, valid)


def _parse_each(data: bytes, unit: int, now: int) -> dict[str, Rows]:
    gathered: dict[str, _Gathered] = {}
    position, number = 0, 1
    while position < len(data):
        line = Line(data, position, number)
        line.skip_spaces()
        if line.peek() == b"#":
            end = data.find(b"\n", position)
            line.position = len(data) if end < 0 else end
        elif line.peek():
            measurement, key = line.head()
            line.skip_spaces()
            fields = line.fields()
            if line.peek() not in (b"", b" "):
                line.fail("a comma, a space or the end of the line has to follow a field")
            time = line.time(unit)
            rows = gathered.setdefault(measurement, _Gathered())
            rows.add(line, key, fields, now if time is None else time)
        end = data.find(b"\n", line.position)
        end = len(data) if end < 0 else end
        number += data.count(b"\n", position, end + 1)
        position = end + 1
    return {name: rows.rows() for name, rows in gathered.items()}


# --- all lines at once ----------------------------------------------------------------------

_HEAD = rb"[^\\ \n#][^\\ \n]*(?:\\[^\n][^\\ \n]*)*"
_FIELDS = rb'[^ \n"\\]*(?:(?:\\[^\n]|"[^"\\]*(?:\\[\s\S][^"\\]*)*")[^ \n"\\]*)*'
_LINE = re.compile(
    rb" *(?:#[^\n]*|(" + _HEAD + rb") +(" + _FIELDS + rb")(?: +([0-9]{1,19}))? *)?(?:\n|\Z)"
)
_FIELD = re.compile(
    rb'([^\\ ,="\n]*(?:\\[^\n][^\\ ,="\n]*)*)=("[^"\\]*(?:\\[\s\S][^"\\]*)*"|[^," \n\\]+)([,\n])'
)


def _parse_matches(data: bytes, unit: int, now: int) -> dict[str, Rows] | None:
    """Parse by two regular expressions; None if one line is wrong, or is a riddle to them."""
    import pyarrow as pa

    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n")
    # Split, not findall: a million tuples keep the garbage collector busy, and take twice as long.
    found = _LINE.split(data)
    if any(found[::4]):  # between two lines there is nothing
        return None
    heads, fieldsets, stamps = found[1::4], found[2::4], found[3::4]
    has_line = np.array([head is not None for head in heads], np.bool_)
    if not has_line.all():  # comments, empty lines, and the end
        fieldsets = [one for one in fieldsets if one is not None]
        stamps = [one for one, head in zip(stamps, heads, strict=True) if head is not None]
        heads = [head for head in heads if head is not None]
    if not heads:
        return {}
    try:
        times = _times(pa.array(stamps, pa.string()), unit, now)
        if times is None:
            return None
        found = _FIELD.split(b"\n".join(fieldsets) + b"\n")
        if any(found[::4]):
            return None
        names, values, ends = found[1::4], found[2::4], found[3::4]
        is_end = np.frombuffer(b"".join(ends), np.uint8) == ord("\n")
        line_of = np.cumsum(is_end) - is_end
        if int(line_of[-1]) + 1 != len(heads):
            return None
        encoded = pa.array(heads, pa.binary()).dictionary_encode()
        # A text with line breaks has lines of its own, so numbers are not known here: an error
        # about them is left to the way that counts.
        return _split_measurements(
            encoded, times, pa.array(names, pa.binary()).dictionary_encode(),
            pa.array(values, pa.binary()), line_of, np.flatnonzero(has_line),
        )  # fmt: skip
    except (pa.ArrowInvalid, BadLineError, UnicodeDecodeError, TooLargeError):
        return None


def _times(stamps: pa.Array, unit: int, now: int) -> Int64s | None:
    import pyarrow as pa
    import pyarrow.compute as pc

    is_missing = stamps.is_null()
    if stamps.null_count:
        stamps = stamps.fill_null("0")
    times: Int64s = pc.cast(stamps, pa.int64()).to_numpy(zero_copy_only=False)
    if int(times.min()) < 0 or int(times.max()) > TIME_MAX // unit:
        return None
    times = times * unit
    if pc.any(is_missing).as_py():
        times[is_missing.to_numpy(zero_copy_only=False)] = now
    return times


def _split_measurements(
    heads: pa.DictionaryArray, times: Int64s, names: pa.DictionaryArray, values: pa.Array,
    line_of: Int64s, numbers: Int64s,
) -> dict[str, Rows] | None:  # fmt: skip
    """Columns of all lines to those of each measurement."""
    import pyarrow as pa

    parsed = [Line(head, 0, 1).head() for head in heads.dictionary.to_pylist()]
    fields = [Line(name, 0, 1).name("a field", b"") for name in names.dictionary.to_pylist()]
    for field in fields:
        check_field_name(field)
    head_codes = heads.indices.to_numpy()
    name_codes = names.indices.to_numpy()
    found: dict[str, Rows] = {}
    for measurement in dict.fromkeys(name for name, _ in parsed):
        keys: dict[bytes, int] = {}
        codes_of = np.full(len(parsed), -1)
        for place, (name, key) in enumerate(parsed):
            if name == measurement:
                codes_of[place] = keys.setdefault(key, len(keys))
        codes = codes_of[head_codes]
        is_own = codes >= 0
        row_of = np.cumsum(is_own) - 1
        count = int(row_of[-1]) + 1
        columns: dict[str, Column] = {}
        for place, field in enumerate(fields):
            chosen = np.flatnonzero((name_codes == place) & is_own[line_of])
            if not len(chosen):
                continue
            rows = row_of[line_of[chosen]]
            if field in columns or bool((rows[1:] == rows[:-1]).any()):
                return None  # a field is there twice, perhaps in two spellings
            typed = _typed(values.take(pa.array(chosen)) if len(chosen) < len(values) else values)
            if typed is None:
                return None
            type, array = typed
            if len(rows) < count:
                whole = np.zeros(count, DTYPES[type])
                whole[rows] = array
                array = whole
            columns[field] = _with_lacking(type, array, rows, count)
        found[measurement] = Rows(
            list(keys), codes[is_own], times[is_own], columns, numbers[is_own]
        )
    return found


def _typed(values: pa.Array) -> tuple[FieldType, npt.NDArray[Any]] | None:
    """The values of a field, with their type; None if they are wrong or do not go together."""
    ends = np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, 4 * values.offset)
    data = np.frombuffer(values.buffers()[2], np.uint8)
    first, last = data[ends[:-1]], data[ends[1:] - 1]
    is_text = first == ord('"')
    is_bool = np.isin(first, np.frombuffer(b"tTfF", np.uint8))
    is_int = (last == ord("i")) | (last == ord("u"))
    if is_text.any():
        return (FieldType.TEXT, _texts(values)) if is_text.all() else None
    if is_bool.any():
        return _bools(values) if is_bool.all() else None
    if is_int.all():
        return _ints(values)
    return None if is_int.any() else _floats(values)


def _texts(values: pa.Array) -> npt.NDArray[Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    inner = pc.binary_slice(values, 1, -1).cast(pa.string())
    if pc.any(pc.match_substring(inner, "\\")).as_py():
        inner = pc.replace_substring_regex(inner, pattern=r'\\(["\\])', replacement=r"\1")
    texts: npt.NDArray[Any] = inner.to_numpy(zero_copy_only=False)
    return texts


def _bools(values: pa.Array) -> tuple[FieldType, npt.NDArray[Any]] | None:
    encoded = values.dictionary_encode()
    spellings = encoded.dictionary.to_pylist()
    if not all(one in TRUE or one in FALSE for one in spellings):
        return None
    meaning = np.array([one in TRUE for one in spellings])
    return FieldType.BOOL, meaning[encoded.indices.to_numpy()]


def _ints(values: pa.Array) -> tuple[FieldType, npt.NDArray[Any]] | None:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pc.any(pc.match_substring_regex(values.cast(pa.string()), r"^\+|^-.*u$")).as_py():
        return None
    digits = pc.binary_slice(values, 0, -1).cast(pa.string())
    return FieldType.INT, digits.cast(pa.int64()).to_numpy(zero_copy_only=False)


def _floats(values: pa.Array) -> tuple[FieldType, npt.NDArray[Any]] | None:
    import pyarrow as pa

    floats = values.cast(pa.string()).cast(pa.float64()).to_numpy(zero_copy_only=False)
    # NaN and the infinities have spellings that Arrow reads and the line protocol does not have.
    return (FieldType.FLOAT, floats) if np.isfinite(floats).all() else None


# --- lines of one shape ---------------------------------------------------------------------

_SEPARATORS = b" ,=\n"
_OTHERS = bytes(set(range(256)) - set(_SEPARATORS))
_COMMAS = bytes.maketrans(b" =", b",,")


def _parse_alike(data: bytes, unit: int) -> dict[str, Rows] | None:
    """Parse lines that differ in values alone, by Arrow's CSV parser; None if they do not.

    Every line has to have the separators of the first, so that a column is one thing in all.
    """
    if not data or any(one in data for one in (b"\\", b'"', b"#", b"\r", b"\t")):
        return None
    if not data.endswith(b"\n"):
        data += b"\n"
    count = data.count(b"\n")
    shape = data[: data.index(b"\n") + 1].translate(None, _OTHERS)
    # Measurement and tags, fields, time.
    match = re.fullmatch(rb"((?:,=)*) (=(?:,=)*) \n", shape)
    if match is None or count < 16 or data.translate(None, _OTHERS) != shape * count:
        return None
    return _read_csv(data, count, len(match[1]) // 2, (len(match[2]) + 1) // 2, unit)


def _read_csv(
    data: bytes, count: int, tag_count: int, field_count: int, unit: int
) -> dict[str, Rows] | None:
    import pyarrow as pa
    from pyarrow import csv

    first = data[: data.index(b"\n")].translate(_COMMAS).split(b",")
    names = [f"{place}" for place in range(len(first))]
    text = pa.dictionary(pa.int32(), pa.string())
    types: dict[str, Any] = dict.fromkeys(names, text)
    values = range(2 + 2 * tag_count, 1 + 2 * tag_count + 2 * field_count, 2)
    parse: dict[int, Callable[[pa.Array], tuple[FieldType, npt.NDArray[Any]] | None]] = {}
    for place in values:
        token = first[place]
        if token[-1:] in (b"i", b"u"):
            types[names[place]], parse[place] = pa.binary(), _ints
        elif token[:1] in (b"t", b"T", b"f", b"F"):
            types[names[place]], parse[place] = pa.binary(), _bools
        else:
            types[names[place]] = pa.float64()
    types[names[-1]] = pa.int64()
    try:
        table = csv.read_csv(
            pa.BufferReader(data.translate(_COMMAS)),
            csv.ReadOptions(column_names=names),
            csv.ParseOptions(delimiter=",", quote_char=False, ignore_empty_lines=False),
            csv.ConvertOptions(
                column_types=types, null_values=[], strings_can_be_null=False, check_utf8=True
            ),
        ).unify_dictionaries()
        columns = [table.column(place).combine_chunks() for place in range(len(names))]
        return _rows_of_csv(columns, first, tag_count, list(values), parse, unit, count)
    except (pa.ArrowInvalid, UnicodeDecodeError, TooLargeError):
        return None  # the other ways know what it is


def _rows_of_csv(
    columns: list[Any], first: list[bytes], tag_count: int, values: list[int],
    parse: Mapping[int, Callable[[Any], tuple[FieldType, npt.NDArray[Any]] | None]],
    unit: int, count: int,
) -> dict[str, Rows] | None:  # fmt: skip
    tags = list(range(1, 1 + 2 * tag_count, 2))
    fields = [place - 1 for place in values]
    constant = [0, *tags, *fields]
    names = [first[place].decode() for place in constant]
    # A name that is empty, or there twice, raises elsewhere.
    if not all(names) or len(set(names[1 : 1 + tag_count])) < tag_count:
        return None
    if len(set(names[1 + tag_count :])) < len(fields):
        return None
    if any(len(columns[place].dictionary) != 1 for place in constant):
        return None
    times = columns[-1].to_numpy(zero_copy_only=False)
    if len(times) != count or int(times.min()) < 0 or int(times.max()) > TIME_MAX // unit:
        return None
    found = {}
    for place, name in zip(values, names[1 + tag_count :], strict=True):
        if place in parse:
            typed = parse[place](columns[place])
        else:
            floats = columns[place].to_numpy(zero_copy_only=False)
            typed = (FieldType.FLOAT, floats) if np.isfinite(floats).all() else None
        if typed is None:
            return None
        found[check_field_name(name)] = Column(*typed)
    series = _series_of_tags(
        names[1 : 1 + tag_count], [columns[place + 1] for place in tags], count
    )
    return None if series is None else {names[0]: Rows(*series, times * unit, found)}


def _series_of_tags(
    names: list[str], columns: list[Any], count: int
) -> tuple[list[bytes], npt.NDArray[Any]] | None:
    values = [column.dictionary.to_pylist() for column in columns]
    if any("" in one for one in values):
        return None
    return combine_tags(names, values, [column.indices.to_numpy() for column in columns], count)
