"""Arguments of series writes, converted to columns: times, fields and tags.

Lists, NumPy arrays and Arrow arrays all become NumPy columns, without a loop over points. All
mistakes are raised here, before anything is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt

from stratalog.arguments import NANOSECONDS_FROM, check_time
from stratalog.errors import OptionError, WrongTypeError
from stratalog.format.points import (
    FIELDS_MAX,
    Column,
    FieldType,
    Int64s,
    check_field_name,
    combine_tags,
    series_key,
)
from stratalog.options import SECONDS_MAX, TIME_MAX

VALUE = "value"
"""The field of a point that was written as a bare value."""

INT_MAX = (1 << 63) - 1

_UNITS = {
    "ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9,
    "d": 86400 * 10**9, "w": 7 * 86400 * 10**9,
}  # fmt: skip


def check_duration(what: str, value: Any) -> int:
    """Convert a duration to nanoseconds: `"5m"`, seconds, or a timedelta."""
    if isinstance(value, str):
        digits = value.rstrip("abcdefghijklmnopqrstuvwxyz")
        unit = _UNITS.get(value[len(digits) :])
        if unit is None or not digits.isascii() or not digits.isdigit():
            raise OptionError(
                f"{what}={value!r} is no duration: use a whole number and one of "
                f"{', '.join(_UNITS)}, such as '5m'"
            )
        nanoseconds = int(digits) * unit
    elif isinstance(value, timedelta):
        nanoseconds = round(value.total_seconds() * 1e9)
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise WrongTypeError(f"{what}={value!r} must be text such as '5m', seconds or a timedelta")
    else:
        nanoseconds = round(value * 1e9) if 0 < value <= SECONDS_MAX else 0
    if not 0 < nanoseconds <= SECONDS_MAX * 10**9:
        raise OptionError(f"{what}={value!r} must be more than 0 seconds and at most 31 years")
    return nanoseconds


def check_tags(tags: Any) -> dict[str, str]:
    """Check the tags of one series."""
    if tags is None:
        return {}
    if not isinstance(tags, Mapping):
        raise WrongTypeError(f"tags are a mapping of text to text, not {type(tags).__name__}")
    return {_tag_text("name", name): _tag_text(f"tag {name!r}", tags[name]) for name in tags}


def _tag_text(what: str, value: Any) -> str:
    if not isinstance(value, str):
        raise WrongTypeError(f"tags are text to text: {what} is {value!r}")
    if not value or "\n" in value:
        raise OptionError(
            f"tags are text that is not empty and has no line break: {what}={value!r}"
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise OptionError(f"tag {value!r} cannot be written as UTF-8: {error}") from None
    return value


def check_fields(value: Any) -> dict[str, Any]:
    """Check the fields of one point."""
    fields = dict(value) if isinstance(value, Mapping) else {VALUE: value}
    if not fields:
        raise OptionError("A point needs at least one field.")
    if len(fields) > FIELDS_MAX:
        raise OptionError(f"A point has {len(fields)} fields, and {FIELDS_MAX} are possible.")
    for name in fields:
        check_field_name(name)
    return fields


def value_type(name: str, value: Any) -> FieldType:
    """Determine the type of a field's value."""
    if isinstance(value, bool | np.bool_):
        return FieldType.BOOL
    if isinstance(value, int | np.integer):
        if not -INT_MAX - 1 <= int(value) <= INT_MAX:
            raise OptionError(f"field {name!r}={value} does not fit into 64 bits")
        return FieldType.INT
    if isinstance(value, float | np.floating):
        if not np.isfinite(value):
            raise OptionError(f"field {name!r} is {value}: leave it out if there is no value")
        return FieldType.FLOAT
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise OptionError(f"field {name!r} cannot be written as UTF-8: {error}") from None
        return FieldType.TEXT
    raise WrongTypeError(f"field {name!r} is {value!r}: fields are float, int, bool or text")


# --- columns --------------------------------------------------------------------------------


def time_column(times: Any) -> Int64s:
    """Convert seconds, datetimes or nanoseconds to nanoseconds: a list, NumPy or Arrow."""
    array, is_exact = _numpy_times(times)
    if array.ndim != 1:
        raise WrongTypeError("times must be one column")
    if array.dtype.kind in "iu":
        _check_range(array, 0, TIME_MAX, array)
        array = array.astype(np.int64, copy=False)
        is_seconds = array < NANOSECONDS_FROM
        if is_exact or not is_seconds.any():
            return array
        _check_range(array[is_seconds], 0, TIME_MAX // 10**9, array)
        return np.where(is_seconds, array * is_seconds * 10**9, array)
    if array.dtype.kind == "f":
        _check_range(array, 0.0, TIME_MAX / 1e9, array)
        whole = array.astype(np.int64)
        return whole * 10**9 + np.round((array - whole) * 1e9).astype(np.int64)
    raise WrongTypeError(f"times are seconds, datetimes or nanoseconds, not {array.dtype}")


def _check_range(array: npt.NDArray[Any], least: Any, most: Any, given: npt.NDArray[Any]) -> None:
    is_right = (array >= least) & (array <= most)  # NaN is in no range
    if not is_right.all():
        wrong = array[np.flatnonzero(~is_right)[0]]
        raise OptionError(
            f"The time {wrong} is before 1970 or after 2230. Give seconds, datetimes, or "
            f"nanoseconds as ints, for all {len(given)} points. Nothing was written."
        )


def _numpy_times(times: Any) -> tuple[npt.NDArray[Any], bool]:
    """Convert times to numbers, and say whether these are nanoseconds, however small."""
    import pyarrow as pa

    if isinstance(times, pa.ChunkedArray):
        times = times.combine_chunks()
    if isinstance(times, pa.Array):
        if times.null_count:
            raise OptionError("A time is missing: every point has one. Nothing was written.")
        if pa.types.is_timestamp(times.type):
            try:
                times = times.cast(pa.timestamp("ns", times.type.tz)).cast(pa.int64())
            except pa.ArrowInvalid as error:
                raise OptionError(
                    f"times do not fit into 64 bits of nanoseconds: {error}"
                ) from None
            return times.to_numpy(zero_copy_only=False), True
        return times.to_numpy(zero_copy_only=False), False
    if isinstance(times, np.ndarray) and times.dtype.kind == "M":
        if np.isnat(times).any():
            raise OptionError("A time is missing: every point has one. Nothing was written.")
        wide = times.astype("datetime64[s]").astype(np.int64)
        _check_range(wide, 0, TIME_MAX // 10**9, wide)
        return times.astype("datetime64[ns]").astype(np.int64), True
    if isinstance(times, np.ndarray) and times.dtype.kind in "iuf":
        return times, False
    try:
        listed = list(times)
    except TypeError:
        raise WrongTypeError(f"times are a column, not {type(times).__name__}") from None
    kinds = set(map(type, listed))
    if kinds <= {int} or kinds <= {float}:
        try:
            return np.array(listed, np.int64 if kinds == {int} else np.float64), False
        except OverflowError:
            pass  # the call below names the one that is too large
    return np.array([check_time("time", time) for time in listed], np.int64), True


def field_column(name: str, given: Any, count: int) -> Column:
    """Convert the values of a field: a list, NumPy, or Arrow; None and null are missing values."""
    import pyarrow as pa

    check_field_name(name)
    if isinstance(given, np.ma.MaskedArray):
        valid = ~np.ma.getmaskarray(given)
        column = field_column(name, np.where(valid, given.data, given.dtype.type(0)), count)
        return column if valid.all() else Column(column.type, column.values, valid)
    if isinstance(given, np.ndarray) and given.dtype.kind in "fiub" and given.ndim == 1:
        return _check_column(name, _numbers(name, given), count)
    try:
        array = given if isinstance(given, pa.Array | pa.ChunkedArray) else pa.array(given)
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise WrongTypeError(
            f"field {name!r}: a column is a list, a NumPy or an Arrow array of floats, ints, bools "
            f"or text, with None where a point lacks it ({error})"
        ) from None
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return _check_column(name, _from_arrow(name, array), count)


def _from_arrow(name: str, array: Any) -> Column:
    import pyarrow as pa

    kind, valid = array.type, None
    if array.null_count:
        valid = array.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        filled = array.fill_null("") if array.null_count else array
        return Column(FieldType.TEXT, filled.to_numpy(zero_copy_only=False), valid)
    if pa.types.is_boolean(kind):
        filled = array.fill_null(False) if array.null_count else array
        return Column(FieldType.BOOL, filled.to_numpy(zero_copy_only=False), valid)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        filled = array.fill_null(0) if array.null_count else array
        type, values, _ = _numbers(name, filled.to_numpy(zero_copy_only=False))
        return Column(type, values, valid)
    raise WrongTypeError(f"field {name!r} is {kind}: fields are float, int, bool or text")


def _numbers(name: str, array: npt.NDArray[Any]) -> Column:
    if array.dtype.kind == "b":
        return Column(FieldType.BOOL, array)
    if array.dtype.kind == "f":
        return Column(FieldType.FLOAT, array.astype(np.float64, copy=False))
    if array.dtype == np.uint64 and len(array) and int(array.max()) > INT_MAX:
        raise OptionError(f"field {name!r} has a number that does not fit into 64 bits")
    return Column(FieldType.INT, array.astype(np.int64, copy=False))


def _check_column(name: str, column: Column, count: int) -> Column:
    if len(column.values) != count:
        raise OptionError(
            f"field {name!r} has {len(column.values)} values for {count} times. Nothing was "
            "written."
        )
    if column.type == FieldType.FLOAT:
        is_right = np.isfinite(column.values)
        if column.valid is not None:
            is_right |= ~column.valid
        if not is_right.all():
            place = int(np.flatnonzero(~is_right)[0])
            raise OptionError(
                f"field {name!r} is {column.values[place]} at place {place}: give None, an Arrow "
                "null or a masked array where a point lacks it. Nothing was written."
            )
    return column


def series_columns(
    tags: Mapping[str, Any] | None, count: int
) -> tuple[list[bytes], npt.NDArray[Any] | None]:
    """Build the names of series, and the index of each point's name; None if there is one."""
    if tags is not None and not isinstance(tags, Mapping):
        raise WrongTypeError(f"tags are a mapping of text to text, not {type(tags).__name__}")
    fixed = {name: value for name, value in (tags or {}).items() if isinstance(value, str)}
    varied = {name: value for name, value in (tags or {}).items() if name not in fixed}
    if not varied:
        return [series_key(check_tags(fixed))], None
    names: list[str] = []
    values: list[list[str]] = []
    codes: list[npt.NDArray[Any]] = []
    for name, given in varied.items():
        texts, own = _tag_column(name, given, count)
        names.append(_tag_text("name", name))
        values.append(texts)
        codes.append(own)
    for name, value in check_tags(fixed).items():
        names.append(name)
        values.append([value])
        codes.append(np.zeros(count, np.int64))
    return combine_tags(names, values, codes, count)


def _tag_column(name: str, given: Any, count: int) -> tuple[list[str], npt.NDArray[Any]]:
    import pyarrow as pa

    try:
        array = given if isinstance(given, pa.Array | pa.ChunkedArray) else pa.array(given)
    except (pa.ArrowException, TypeError) as error:
        raise WrongTypeError(f"tag {name!r} is text, or a column of text: {error}") from None
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if not pa.types.is_dictionary(array.type):
        array = array.dictionary_encode()
    if len(array) != count:
        raise OptionError(
            f"tag {name!r} has {len(array)} values for {count} times. Nothing was written."
        )
    if array.null_count or array.dictionary.null_count:
        raise OptionError(f"tag {name!r} lacks a value: every point of a call has the same tags")
    texts = [_tag_text(f"tag {name!r}", value) for value in array.dictionary.to_pylist()]
    return texts, array.indices.to_numpy(zero_copy_only=False)


def as_known(column: Column, known: FieldType | None) -> Column:
    """Convert whole numbers to floats, for a field that has floats."""
    if column.type == FieldType.INT and known == FieldType.FLOAT:
        return Column(FieldType.FLOAT, column.values.astype(np.float64), column.valid)
    return column
