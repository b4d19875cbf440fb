"""One change of a table: the key and value, the condition, and the encoding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from stratalog.arguments import check_bytes, check_text
from stratalog.errors import (
    OptionError,
    TooLargeError,
    VersionConflictError,
    WrongKindError,
    WrongTypeError,
)
from stratalog.format.columns import Columns, encode_columns
from stratalog.format.table import BYTES_KEY, DELETED
from stratalog.log.commit_group import Entry, check_batch, records_entry
from stratalog.log.topic import TopicLog
from stratalog.options import check_range, plain, seconds
from stratalog.state.table_projection import BYTES_TAG
from stratalog.state.table_state import Version, text_of

Key = str | bytes
Value = bytes | bytearray | memoryview
Buffer = bytearray | memoryview
"""Values besides bytes that a table without a type takes."""

# The most digits of a counter, including the sign.
_COUNTER_BYTES_MAX = 64


class Change:
    """One change of a key: a put, a deletion (no value), or an addition to a counter."""

    __slots__ = ("amount", "expiry", "flags", "key", "ttl", "value")

    def __init__(
        self, key: bytes, value: bytes | None, flags: int, ttl: int, amount: int | None = None
    ) -> None:
        self.key = key
        self.value = value
        self.flags = flags
        self.ttl = ttl
        self.amount = amount
        self.expiry = 0
        """Expiry of a counter that keeps its own."""

    @property
    def is_deletion(self) -> bool:
        """Whether it deletes the key."""
        return bool(self.flags & DELETED)

    def apply(self, found: Version | None, read: Callable[[Version], bytes]) -> bool:
        """Resolve the change against the key's current version; False if there is nothing to do.

        May be repeated with a later version.
        """
        if self.amount is not None:
            before = 0 if found is None else counter_of(self.key, self.flags, read(found))
            self.value = counter(before + self.amount)
            self.expiry = 0 if self.ttl or found is None else found.expires_at
        elif self.value is None:
            if found is None:
                return False
            self.flags |= DELETED
        return True

    def expires_at(self, timestamp: int) -> int:
        """Return when it expires if it is written at this time."""
        return timestamp + self.ttl if self.ttl else self.expiry


class Condition:
    """The state that a key must have for a change to be made."""

    __slots__ = ("_if_absent", "_if_version", "_key", "_name")

    def __init__(self, name: str, key: Key, if_version: Any, if_absent: Any) -> None:
        if if_version is not None:
            if_version = check_range("if_version", if_version, 0, 1 << 63)
        if not isinstance(if_absent, bool):
            raise WrongTypeError(f"if_absent={if_absent!r} must be True or False")
        if if_version is not None and if_absent:
            raise OptionError(
                "if_version and if_absent exclude each other: a key that is not there has no "
                "version. Give one of them."
            )
        self._name = name
        self._key = key
        self._if_version = if_version
        self._if_absent = if_absent

    def check(self, found: Version | None) -> None:
        """Raise `VersionConflictError` unless the key has the required state."""
        if self._if_absent and found is not None:
            raise VersionConflictError(
                f"Key {self._key!r} of table {self._name!r} is there already, at version "
                f"{found.version}. Nothing was written. Give if_version={found.version} to "
                "replace it.",
                found.version,
            )
        wanted = self._if_version
        if wanted is None or (found is not None and found.version == wanted):
            return
        is_now = "is not there" if found is None else f"is at version {found.version}"
        raise VersionConflictError(
            f"Key {self._key!r} of table {self._name!r} {is_now}, not at version {wanted}. Nothing "
            "was written. Read it again, and decide by what it is now.",
            None if found is None else found.version,
        )


def encode_rows(
    log: TopicLog, keys: list[bytes], values: Sequence[bytes | None], flags: list[int] | None,
    expires_at: int | list[int],
) -> Entry:  # fmt: skip
    """Encode changes of keys as one frame."""
    columns = Columns(values, keys=keys)
    if flags is not None:
        if any(flag & DELETED for flag in flags):
            columns.operations = [int(bool(flag & DELETED)) for flag in flags]
        if any(flag & BYTES_KEY for flag in flags):
            columns.tags = [BYTES_TAG if flag & BYTES_KEY else None for flag in flags]
    if isinstance(expires_at, list):
        columns.expires_at = expires_at if any(expires_at) else None
    elif expires_at:
        columns.expires_at = [expires_at] * len(keys)
    encoded_flags, body = encode_columns(columns)
    check_batch(log, len(body))
    return records_entry(log, encoded_flags, body, len(keys))


def columns_of(
    entries: Mapping[Any, Any] | Iterable[tuple[Any, Any]],
) -> tuple[list[bytes], list[int] | None, list[bytes]]:
    """Encode entries: keys, their flags (None if all are text) and values."""
    pairs = list(entries.items() if isinstance(entries, Mapping) else entries)
    if not pairs:
        raise OptionError("put_many needs at least one key and its value.")
    try:
        keys, values = map(list, zip(*pairs, strict=True))
    except (TypeError, ValueError):
        raise WrongTypeError(
            "put_many takes a mapping of keys to values, or pairs of both."
        ) from None
    datas, flags = keys_of(keys)
    if not all(type(value) is bytes for value in values):
        values = [value_of(value) for value in values]
    return datas, flags, values


def key_of(key: Any) -> tuple[bytes, int]:
    """Encode a key, with its flag."""
    if isinstance(key, str):
        return text(key), 0
    if isinstance(key, bytes | bytearray | memoryview):
        return bytes(key), BYTES_KEY
    raise WrongTypeError(f"A key is text or bytes, not {type(key).__name__}: {key!r}")


def keys_of(keys: list[Any]) -> tuple[list[bytes], list[int] | None]:
    """Encode keys, with their flags; None if all are text."""
    if all(type(key) is str for key in keys):
        try:
            return [key.encode() for key in keys], None
        except UnicodeEncodeError:
            pass  # the loop below names the key
    pairs = [key_of(key) for key in keys]
    return [data for data, _ in pairs], [flags for _, flags in pairs]


def text(key: str) -> bytes:
    """Encode a key that is text."""
    data = check_text("key", key)
    assert data is not None
    return data


def value_of(value: Any) -> bytes:
    """Convert a value to bytes."""
    if value is None:
        raise WrongTypeError("A value is bytes, not None. Call delete() to remove a key.")
    data = check_bytes("value", value)
    assert data is not None
    return data


def ttl_of(ttl: Any) -> int:
    """Convert a time to live to nanoseconds; 0 for none."""
    return 0 if ttl is None else round(seconds("ttl", ttl) * 10**9)


def check_amount(amount: Any) -> int:
    """Check what is to be added to a counter."""
    if isinstance(amount, bool) or not isinstance(amount, int):
        raise WrongTypeError(f"amount={amount!r} must be a whole number")
    number: int = plain(amount)
    counter(number)
    return number


def counter(number: int) -> bytes:
    """Encode a counter as a value."""
    data = b"%d" % number if number.bit_length() < 256 else bytes(_COUNTER_BYTES_MAX + 1)
    if len(data) > _COUNTER_BYTES_MAX:
        raise TooLargeError(
            f"A counter has at most {_COUNTER_BYTES_MAX} digits. Nothing was written."
        )
    return data


def counter_of(key: bytes, flags: int, value: bytes) -> int:
    """Decode a counter's value."""
    digits = value.removeprefix(b"-")
    if digits.isdigit() and len(value) <= _COUNTER_BYTES_MAX:
        return int(value)
    raise WrongKindError(
        f"Key {text_of(key, flags)!r} is no counter: its value is {value[:40]!r}, not a whole "
        "number. Nothing was written. Put a number, such as b'0', to make it one."
    )
