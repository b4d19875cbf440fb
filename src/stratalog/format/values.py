"""Typed values: how a Python value becomes the bytes of a record, and how it is read back.

| type | stored as | checked at append by |
|---|---|---|
| `bytes` | itself | nothing: this is a topic without a type |
| `str` | UTF-8 | its Python type |
| `dict`, `list` | JSON or MessagePack | reading it back: it must be equal |
| structs, dataclasses, and all else that msgspec knows | the same | reading it back as that type |
| pydantic models | the same | reading it back as that model |

msgspec does not check a struct when it is made, so what was encoded is decoded again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Generic, Literal, TypeAlias, get_origin

import msgspec

from stratalog.errors import (
    InvalidValueError,
    OptionError,
    SchemaMismatchError,
    UndecodableValueError,
    WrongTypeError,
)
from stratalog.format.schema import Schema, decode_schema, encode_schema, merge, normal, problems
from stratalog.model import (
    Delivery,
    Message,
    Operation,
    Record,
    T,
    TypedDelivery,
    TypedMessage,
    TypedRecord,
    UndecodableDelivery,
    UndecodableMessage,
    UndecodableRecord,
)

Encoding: TypeAlias = Literal["json", "msgpack"]
ENCODINGS = ("json", "msgpack")
_OFFSET = Record.__struct_fields__.index("offset")
_OPERATION = Record.__struct_fields__.index("operation")
TEXT = "text"
"""The encoding of `str`."""

_PLACE = re.compile(r" - at `(?:key in )?\$\.?([^`]*)`$")
_MISSING = re.compile(r"^Object (?:missing required|contains unknown) field `([^`]*)`")

# What encoders and decoders raise for a value that does not fit.
_FAILURES = (
    msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError, AttributeError,
)  # fmt: skip


class Codec(Generic[T]):
    """The type of a topic's values: makes bytes of them, and reads them back."""

    __slots__ = ("decode", "encode", "encoding", "name", "schema", "topic", "type")

    encode: Callable[[Any], bytes]
    """Bytes of a value, checked; raises `InvalidValueError`."""
    decode: Callable[[bytes], Any]
    """A value out of bytes; raises whatever the library that does it raises."""

    def __init__(self, type: Any, encoding: str | None, topic: str) -> None:
        self.type = type
        self.name = getattr(type, "__name__", None) if get_origin(type) is None else None
        self.name = self.name or str(type)
        self.topic = topic
        """Whose values they are, for errors."""
        if encoding is not None and encoding not in ENCODINGS:
            raise OptionError(
                f"encoding={encoding!r} is not known: use one of {', '.join(ENCODINGS)}"
            )
        if type is str:
            if encoding is not None:
                raise OptionError(
                    f"encoding={encoding!r} is not for text, which is stored as UTF-8. Leave it "
                    "out, or give another type."
                )
            self.encoding = TEXT
            self.schema: Schema = {"type": "string"}
            self.encode, self.decode = self._encode_text, bytes.decode
            return
        self.encoding = encoding or "json"
        if _is_pydantic(type):
            self._use_pydantic(type)
        else:
            self._use_msgspec(type)

    def __repr__(self) -> str:
        return f"<stratalog.Codec {self.name} as {self.encoding}>"

    # --- by kind of type ------------------------------------------------------------------

    def _use_msgspec(self, type: Any) -> None:
        try:
            schema = msgspec.json.schema(type)
            encode: Callable[[Any], bytes]
            decode: Callable[[bytes], Any]
            if self.encoding == "json":
                encode, decode = msgspec.json.Encoder().encode, msgspec.json.Decoder(type).decode
            else:
                encode = msgspec.msgpack.Encoder().encode
                decode = msgspec.msgpack.Decoder(type).decode
        except (TypeError, KeyError, msgspec.MsgspecError) as error:  # a name of two: KeyError
            raise WrongTypeError(
                f"type={self.name} cannot be the type of values: {error}. Use str, bytes, dict, "
                "list, a msgspec struct, a dataclass or a pydantic model."
            ) from error
        self.decode = decode
        self.schema = normal(schema)
        kind = get_origin(type) or type
        is_plain = type in (dict, list)
        # A union, or Any, has no instances of its own: decoding alone judges those.
        is_class = isinstance(kind, _TYPE) and not hasattr(type, "__total__")

        def checked(value: Any) -> bytes:
            if is_class and not isinstance(value, kind):
                raise self._wrong_class(value)
            try:
                data = encode(value)
                found = decode(data)
            except _FAILURES as error:
                raise self._invalid(error) from error
            if is_plain and found != value:
                raise self._changed(value, found)
            return data

        self.encode = checked

    def _use_pydantic(self, type: Any) -> None:
        self.schema = normal(type.model_json_schema())
        # Not model_dump_json() and model_validate_json(): those take a microsecond more each.
        serializer, validator = type.__pydantic_serializer__, type.__pydantic_validator__
        to_json, load = serializer.to_json, validator.validate_json

        def dump(value: Any) -> bytes:
            data: bytes = to_json(value, by_alias=True)  # by which name it is read back
            return data

        if self.encoding == "msgpack":
            pack, unpack = msgspec.msgpack.encode, msgspec.msgpack.decode

            def dump(value: Any) -> bytes:
                return pack(serializer.to_python(value, mode="json", by_alias=True))

            def load(data: bytes) -> Any:
                return validator.validate_json(msgspec.json.encode(unpack(data)))

        self.decode = load

        def checked(value: Any) -> bytes:
            if not isinstance(value, type):
                raise self._wrong_class(value)
            try:
                data = dump(value)
                load(data)
            except _FAILURES as error:
                raise self._invalid(error) from error
            return data

        self.encode = checked

    def _encode_text(self, value: Any) -> bytes:
        if not isinstance(value, str):
            raise self._wrong_class(value)
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise self._invalid(error) from error

    # --- errors ---------------------------------------------------------------------------

    def _wrong_class(self, value: Any) -> InvalidValueError:
        return InvalidValueError(
            f"A value of {self.topic!r} is of type {self.name}, not {type(value).__name__}: "
            f"{value!r:.80}. Nothing was written."
        )

    def _invalid(self, error: Exception) -> InvalidValueError:
        field, why = reason_of(error)
        where = f" in field {field!r}" if field else ""
        return InvalidValueError(
            f"A value for {self.topic!r} does not fit its type {self.name}{where}: {why}. "
            "Nothing was written.",
            field,
        )

    def _changed(self, value: Any, found: Any) -> InvalidValueError:
        field, before, after = difference(value, found)
        where = f" in field {field!r}" if field else ""
        return InvalidValueError(
            f"A value for {self.topic!r} would be read back as another one{where}: {before!r:.80} "
            f"as {after!r:.80}. Nothing was written. Use what {self.encoding} has: text, numbers, "
            "True, False, None, lists, and dicts with text as keys.",
            field,
        )

    def undecodable(self, offset: int, error: Exception | None) -> UndecodableValueError:
        """An error for a stored value that is not of the type."""
        field, why = ("", "it has no value") if error is None else reason_of(error)
        where = f", field {field!r}" if field else ""
        return UndecodableValueError(
            f"The value at offset {offset} of {self.topic!r} is not of type {self.name}{where}: "
            f"{why}. Its bytes are in .raw, and are read by handles that are opened without type.",
            self.topic,
            offset,
            field,
        )

    # --- reading --------------------------------------------------------------------------

    def value(self, raw: bytes | None, offset: int) -> Any:
        """Read a stored value; raises `UndecodableValueError`."""
        try:
            if raw is not None:
                return self.decode(raw)
        except _FAILURES as error:
            raise self.undecodable(offset, error) from error
        raise self.undecodable(offset, None)

    def values(self, raws: list[bytes | None]) -> list[Any] | None:
        """Read many stored values; None if there is one that cannot be."""
        try:
            return list(map(self.decode, raws))  # type: ignore[arg-type]  # None raises, too
        except _FAILURES:
            return None

    def records(self, fields: list[Any]) -> list[Record[T]]:
        """Make records of their fields, in the order `Record` has them, an iterable for each."""
        raws = fields[0]
        values = self.values(raws)
        if values is not None:
            return list(map(TypedRecord, values, *fields[1:], raws))
        return [self._record(row) for row in zip(*fields, strict=False)]

    def records_of(self, found: Iterable[Record]) -> list[Record[T]]:
        """Read the values of records."""
        return [self._record(msgspec.structs.astuple(record)) for record in found]

    def _record(self, row: tuple[Any, ...]) -> Record[T]:
        make: Any = TypedRecord
        raw, rest, offset, operation = row[0], row[1:], row[_OFFSET], row[_OPERATION]
        try:
            is_deletion = raw is None and operation == Operation.DELETE
            value = None if is_deletion else self.value(raw, offset)
            record: Record[T] = make(value, *rest, raw)
        except UndecodableValueError as error:
            make = UndecodableRecord
            record = make(None, *rest, raw, error)
        return record

    def deliveries(self, found: Iterable[Delivery]) -> list[Delivery[T]]:
        """Read the values of deliveries."""
        return [self._delivery(one, TypedDelivery, UndecodableDelivery) for one in found]

    def messages(self, found: Iterable[Message]) -> list[Message[T]]:
        """Read the values of messages."""
        return [self._delivery(one, TypedMessage, UndecodableMessage) for one in found]

    def _delivery(self, one: Delivery, good: Any, bad: Any) -> Any:
        raw = one.value
        fields: tuple[Any, ...] = (
            one.timestamp, one.offset, one.source, one.lease, one.more, one.settled,
        )  # fmt: skip
        if good is TypedMessage:
            fields += (0,)  # held
        try:
            # Not value(): it says the same in 100 ns more.
            return good(self.decode(raw), *fields, raw)  # type: ignore[arg-type]  # None raises
        except _FAILURES as error:
            why = self.undecodable(one.offset, None if raw is None else error)
            return bad(None, *fields, raw, why)

    def check_raws(self, raws: Iterable[bytes | None]) -> None:
        """Raise `InvalidValueError` unless all of these bytes are values of the type."""
        for raw in raws:
            try:
                self.decode(raw or b"")
            except _FAILURES as error:
                raise self._invalid(error) from error


_TYPE = type


def _is_pydantic(type: Any) -> bool:
    """Whether a type is a pydantic model, without importing pydantic for those that are not."""
    return hasattr(type, "__pydantic_validator__") and hasattr(type, "model_json_schema")


def reason_of(error: BaseException) -> tuple[str, str]:
    """The field that an error is about, if it says so, and the rest of its message."""
    details = getattr(error, "errors", None)
    if callable(details) and (found := details()):  # of pydantic
        return _joined(found[0]["loc"]), str(found[0]["msg"])
    text = str(error)
    if place := _PLACE.search(text):
        missing = _MISSING.match(text)
        inner = [place[1]] if missing is None else [place[1], missing[1]]
        return ".".join(part for part in inner if part), text[: place.start()]
    if missing := _MISSING.match(text):
        return missing[1], text
    return "", text or type(error).__name__


def _joined(path: Iterable[Any]) -> str:
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else str(part)
    return text


def difference(value: Any, found: Any, path: str = "") -> tuple[str, Any, Any]:
    """The first place in which what was read back differs, and both sides there."""
    if isinstance(value, dict) and isinstance(found, dict):
        for key, item in value.items():
            place = f"{path}.{key}" if path else str(key)
            if key not in found:
                return place, key, str(key)
            if item != found[key]:
                return difference(item, found[key], place)
    elif isinstance(value, list) and isinstance(found, list) and len(value) == len(found):
        for index, (item, other) in enumerate(zip(value, found, strict=True)):
            if item != other:
                return difference(item, other, f"{path}[{index}]")
    return path, value, found


# --- the schema of a topic ----------------------------------------------------------------


def declared(codec: Codec[Any], encoding: str | None, stored: str | None) -> str:
    """The schema of a topic that has one, and is opened with a type; its own if nothing is new.

    Raises `SchemaMismatchError` if the type cannot read what the topic may hold.
    """
    if stored is None or encoding is None:
        return encode_schema(codec.schema)
    if encoding != codec.encoding:
        raise SchemaMismatchError(
            f"Values of {codec.topic!r} are stored as {encoding}, which {codec.name} as "
            f"{codec.encoding} cannot read. Give the type it was made with, or another topic.\n"
            f"stored: {stored}\ngiven:  {encode_schema(codec.schema)}",
            stored,
            encode_schema(codec.schema),
        )
    before = decode_schema(stored)
    found = problems(codec.schema, before)
    if found:
        given = encode_schema(codec.schema)
        raise SchemaMismatchError(
            f"Type {codec.name} cannot read every value of {codec.topic!r}:\n"
            + "\n".join(f"  {one}" for one in found)
            + "\nFields may be added with a default, dropped and widened. Give such a type, or "
            f"another topic.\nstored: {stored}\ngiven:  {given}",
            stored,
            given,
        )
    return encode_schema(merge(before, codec.schema))
