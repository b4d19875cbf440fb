"""`stratalog create` and `stratalog alter`: topics and their options."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Annotated, Any

import typer

import stratalog
from stratalog import OptionError, TopicOptions
from stratalog.cli.look import StorePath
from stratalog.cli.output import AsJson, write_facts, write_json
from stratalog.options import check_known, from_text

Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option", "-o", metavar="NAME=VALUE", show_default=False,
        help="An option of the topic, such as ttl=3600; may be repeated.",
    ),
]  # fmt: skip
TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")]


def create(
    path: StorePath,
    topic: TopicName,
    option: Options = None,
    exist_ok: Annotated[
        bool, typer.Option("--exist-ok", help="Accept an existing topic that has these options.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Create a topic with options of its own."""
    given = _parse(option or ())
    with stratalog.open(path) as store:
        _show(store.create_topic(topic, exist_ok=exist_ok, **given), as_json=as_json)


def alter(
    path: StorePath, topic: TopicName, option: Options = None, as_json: AsJson = False
) -> None:
    """Change options of a topic, or show them; those that are not given stay as they are."""
    given = _parse(option or ())
    with stratalog.open(path, read_only=True) as store:
        handle = store.topic(topic)  # raises unless both are there: nothing is created
        if not given:
            _show(handle, as_json=as_json)
            return
    with stratalog.open(path) as store:
        handle = store.topic(topic)
        handle.alter(**given)
        _show(handle, as_json=as_json)


def _parse(texts: Iterable[str]) -> Any:
    types = {field.name: str(field.type) for field in dataclasses.fields(TopicOptions)}
    found: dict[str, Any] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not (name and separator):
            raise OptionError(f"option {text!r} is not of the form name=value")
        check_known("topic option", [name], types)
        found[name] = from_text(name, value, types[name])
    return found


def _show(topic: stratalog.Topic, *, as_json: bool) -> None:
    fields = dataclasses.asdict(topic.options)
    if as_json:
        write_json({"topic": topic.name, "options": fields})
    else:
        write_facts([("topic", topic.name), *((name, str(fields[name])) for name in fields)])
