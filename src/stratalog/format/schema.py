"""Schemas of values: a normal form of JSON Schema, and which type can read what another wrote.

The schema that a topic keeps describes every value that it may hold: the union of the types that
its values were written with. A field that was dropped stays in it, and is no longer required.

Normal form: references are resolved, except inside of a type that holds itself; titles, texts and
defaults are left out; `const` is an `enum` of one, `oneOf` is `anyOf`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import msgspec

from stratalog.errors import CorruptionError

Schema: TypeAlias = dict[str, Any]

_KEPT = (
    "additionalProperties", "contentEncoding", "exclusiveMaximum", "exclusiveMinimum", "format",
    "maxItems", "maxLength", "maxProperties", "maximum", "minItems", "minLength", "minProperties",
    "minimum", "multipleOf", "pattern", "type",
)  # fmt: skip
_LEAST = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_MOST = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_EXACT = ("pattern", "multipleOf")
_REFERENCE = "#/$defs/"

_ENCODER = msgspec.json.Encoder(order="deterministic")


def normal(schema: Mapping[str, Any]) -> Schema:
    """A schema as a library makes it, in normal form."""
    definitions = schema.get("$defs", {})
    recursive: dict[str, Schema | None] = {}
    found = _normal(schema, definitions, (), recursive)
    if recursive:
        found = found | {"$defs": recursive}
    return found


def _normal(
    node: Any, definitions: Mapping[str, Any], inside: tuple[str, ...], recursive: dict[str, Any]
) -> Schema:
    if not isinstance(node, Mapping):
        return {}
    if "$ref" in node:
        name = str(node["$ref"]).removeprefix(_REFERENCE)
        if name in inside:
            recursive.setdefault(name, None)
            return {"$ref": _REFERENCE + name}
        made = _normal(definitions.get(name, {}), definitions, (*inside, name), recursive)
        if name in recursive:
            recursive[name] = made
            return {"$ref": _REFERENCE + name}
        return made
    if len(node.get("allOf", ())) == 1:
        return _normal(node["allOf"][0], definitions, inside, recursive)

    def inner(part: Any) -> Schema:
        return _normal(part, definitions, inside, recursive)

    found: Schema = {}
    for name in _KEPT:
        if name in node:
            value = node[name]
            found[name] = inner(value) if isinstance(value, Mapping) else value
    if found.get("additionalProperties") is True:
        del found["additionalProperties"]
    if "const" in node or "enum" in node:
        found["enum"] = list(node["enum"]) if "enum" in node else [node["const"]]
    if choices := node.get("anyOf", node.get("oneOf")):
        found["anyOf"] = [inner(choice) for choice in choices]
    if "properties" in node:
        found["properties"] = {name: inner(part) for name, part in node["properties"].items()}
        found["required"] = sorted(node.get("required", ()))
    if isinstance(node.get("items"), Mapping):
        found["items"] = inner(node["items"])
    if "prefixItems" in node:
        found["prefixItems"] = [inner(part) for part in node["prefixItems"]]
    return found


def encode_schema(schema: Schema) -> str:
    """A schema as a topic's options have it."""
    return _ENCODER.encode(schema).decode()


def decode_schema(text: str) -> Schema:
    """Read a schema of a topic's options; raises `CorruptionError`."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise CorruptionError(f"a schema does not decode: {error}") from error


# --- reading what another type wrote ------------------------------------------------------


def problems(given: Schema, stored: Schema) -> list[str]:
    """Say why a type may fail to read what is stored, by field; empty if it cannot fail."""
    return list(_Comparison(given, stored).problems(given, stored, ""))


class _Comparison:
    """Two schemas, and the pairs of recursive types in them that are being compared."""

    def __init__(self, given: Schema, stored: Schema) -> None:
        self._given = given.get("$defs", {})
        self._stored = stored.get("$defs", {})
        self._seen: set[tuple[str, str]] = set()

    def problems(self, given: Schema, stored: Schema, path: str) -> Iterator[str]:
        if "$ref" in given or "$ref" in stored:
            if "$ref" in given and "$ref" in stored:  # else one of them ends somewhere
                pair = (str(given["$ref"]), str(stored["$ref"]))
                if pair in self._seen:
                    return
                self._seen.add(pair)
            given = _resolved(given, self._given)
            stored = _resolved(stored, self._stored)
        options = stored.get("anyOf", [stored])
        choices = given.get("anyOf", [given])
        for option in options:
            found = [list(self._one(choice, option, path)) for choice in choices]
            if not all(found):
                continue
            # The choice of the same kind says best what is wrong.
            alike = [
                one
                for one, choice in zip(found, choices, strict=True)
                if _resolved(choice, self._given).get("type")
                == _resolved(option, self._stored).get("type")
            ]
            if len(choices) == 1 or len(alike) == 1:
                yield from (alike or found)[0]
            else:
                yield _differ(path, given, option)

    def _one(self, given: Schema, stored: Schema, path: str) -> Iterator[str]:
        if "$ref" in given or "$ref" in stored or "anyOf" in given or "anyOf" in stored:
            yield from self.problems(given, stored, path)
            return
        if not _without_definitions(given):
            return  # anything
        kinds = _kinds(given), _kinds(stored)
        if (
            not kinds[1]
            or not all(_is_read(kind, kinds[0]) for kind in kinds[1])
            or ("enum" in given and not _holds(given["enum"], stored.get("enum")))
            or given.get("contentEncoding") != stored.get("contentEncoding")
            or (
                "format" in given
                and given["format"] != stored.get("format")
                and "enum" not in stored
            )
            or not _is_bounded(given, stored)
        ) or not _is_kept(given, stored):
            yield _differ(path, given, stored)
        elif kinds[1] == {"object"}:
            yield from self._fields(given, stored, path)
        elif kinds[1] == {"array"}:
            yield from self._items(given, stored, path)

    def _fields(self, given: Schema, stored: Schema, path: str) -> Iterator[str]:
        has, had = given.get("properties", {}), stored.get("properties", {})
        rest, stored_rest = given.get("additionalProperties"), stored.get("additionalProperties")
        if has and "properties" not in stored:
            yield _differ(path, given, stored)
            return
        for name, part in has.items():
            place = f"{path}.{name}" if path else name
            if name in had:
                yield from self.problems(part, had[name], place)
                if name in given["required"] and name not in stored["required"]:
                    yield f"{place}: the type requires it, stored values may lack it"
            elif name in given["required"]:
                yield f"{place}: the type requires it, stored values lack it"
        for name in had.keys() - has.keys():
            place = f"{path}.{name}" if path else name
            if rest is False:
                yield f"{place}: stored values may have it, the type allows no other fields"
            elif isinstance(rest, Mapping):
                yield from self.problems(dict(rest), had[name], place)
        if isinstance(rest, Mapping) and "properties" not in stored:
            yield from self.problems(dict(rest), dict(stored_rest or {}), f"{path}[...]")

    def _items(self, given: Schema, stored: Schema, path: str) -> Iterator[str]:
        has, had = given.get("prefixItems", []), stored.get("prefixItems", [])
        if has and not had:
            yield _differ(path, given, stored)
            return
        for place, (part, before) in enumerate(zip(has, had, strict=False)):
            yield from self.problems(part, before, f"{path}[{place}]")
        if "items" in given and not has:
            for before in [*had, *([] if had else [stored.get("items", {})])]:
                yield from self.problems(given["items"], before, f"{path}[...]")


def _resolved(schema: Schema, definitions: Mapping[str, Any]) -> Schema:
    if "$ref" in schema:
        return dict(definitions.get(str(schema["$ref"]).removeprefix(_REFERENCE)) or {})
    return schema


def _without_definitions(schema: Schema) -> Schema:
    return {name: value for name, value in schema.items() if name != "$defs"}


def _kinds(schema: Schema) -> set[str]:
    """JSON types that a value may have."""
    if "enum" in schema:
        return {_KINDS[type(item)] for item in schema["enum"] if type(item) in _KINDS}
    found = schema.get("type", ())
    return {found} if isinstance(found, str) else set(found)


_KINDS = {
    str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null",
    list: "array", dict: "object",
}  # fmt: skip


def _is_read(stored: str, given: set[str]) -> bool:
    return stored in given or (stored == "integer" and "number" in given)


def _holds(given: list[Any], stored: list[Any] | None) -> bool:
    return stored is not None and all(item in given for item in stored)


def _is_kept(given: Schema, stored: Schema) -> bool:
    """Whether what a type says about a value of its own kind excludes nothing that is stored."""
    if "enum" in given and not _holds(given["enum"], stored.get("enum")):
        return False
    if given.get("contentEncoding") != stored.get("contentEncoding"):
        return False
    if "format" in given and given["format"] != stored.get("format") and "enum" not in stored:
        return False
    return _is_bounded(given, stored)


def _is_bounded(given: Schema, stored: Schema) -> bool:
    """Whether bounds of a type exclude nothing that is stored."""
    if "enum" in stored:
        return True
    return (
        all(given[one] <= stored.get(one, float("-inf")) for one in _LEAST if one in given)
        and all(given[one] >= stored.get(one, float("inf")) for one in _MOST if one in given)
        and all(given[one] == stored.get(one) for one in _EXACT if one in given)
    )


def _differ(path: str, given: Schema, stored: Schema) -> str:
    return f"{path or 'value'}: stored as {shown(stored)}, the type has {shown(given)}"


def shown(schema: Schema) -> str:
    """A schema for people, in few words."""
    if "$ref" in schema:
        return str(schema["$ref"]).removeprefix(_REFERENCE)
    if "anyOf" in schema:
        return " or ".join(shown(choice) for choice in schema["anyOf"])
    if "enum" in schema:
        return "one of " + ", ".join(map(repr, schema["enum"]))
    kinds = sorted(_kinds(schema))
    if kinds == ["object"] and "properties" in schema:
        fields = [
            f"{name}{'' if name in schema['required'] else '?'}" for name in schema["properties"]
        ]
        return f"object with {', '.join(fields)}" if fields else "object"
    if kinds == ["array"] and "items" in schema:
        return f"array of {shown(schema['items'])}"
    bounds = [f"{name} {schema[name]}" for name in (*_LEAST, *_MOST, *_EXACT) if name in schema]
    extra = [schema[name] for name in ("format", "contentEncoding") if name in schema] + bounds
    words = " or ".join(kinds) or "anything"
    return f"{words} ({', '.join(map(str, extra))})" if extra else words


def merge(stored: Schema, given: Schema) -> Schema:
    """A schema of what is stored and what a type that can read it will write."""
    if stored == given or "$ref" in stored or "$ref" in given:
        return given
    if "anyOf" in given or "anyOf" in stored:
        before = stored.get("anyOf", [stored])
        choices = given.get("anyOf", [given])
        merged = [
            next((merge(old, one) for old in before if _kinds(old) == _kinds(one)), one)
            for one in choices
        ]
        return given | {"anyOf": merged} if "anyOf" in given else merged[0]
    if "properties" in stored and "properties" in given:
        had, has = stored["properties"], given["properties"]
        fields = {
            name: merge(had[name], has[name]) if name in had and name in has else part
            for name, part in (had | has).items()
        }
        both = set(stored["required"]) & set(given["required"])
        return given | {"properties": fields, "required": sorted(both)}
    if "items" in stored and "items" in given:
        return given | {"items": merge(stored["items"], given["items"])}
    return given
