"""Options of an existing topic: compare them, and change them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stratalog.errors import OptionError, WrongKindError
from stratalog.format.control import TopicBody, encode_topic
from stratalog.format.frame import FrameType
from stratalog.handles.kinds import check_is
from stratalog.log.log import Control
from stratalog.log.topic import TopicLog
from stratalog.options import TopicOptions
from stratalog.state.router import control


def check_same(log: TopicLog, given: Mapping[str, Any]) -> None:
    """Raise unless a topic has the options that are given."""
    check_is(log, "topic")
    wanted = TopicOptions.build(given)
    for name in given:
        has, asked = getattr(log.options, name), getattr(wanted, name)
        if has != asked and not (name == "durability" and asked is None):
            raise OptionError(
                f"Topic {log.name!r} exists with {name}={_shown(has)}, not {_shown(asked)}. Change "
                f"it with store.topic({log.name!r}).alter({name}=...), or leave {name} out."
            )


def alteration(log: TopicLog, given: Mapping[str, Any]) -> Control | None:
    """Build the frame that changes options of a topic; None if it has them already."""
    if log.kind != "topic":
        raise WrongKindError(
            f"{log.name!r} is a {log.kind}: the options of its records are for good. Change those "
            f"of the {log.kind} with store.{log.kind}({log.name!r}, ...)."
        )
    TopicOptions.build(given)
    before = log.options
    options = TopicOptions.restore({**before.to_dict(), **given})
    if options == before:
        return None
    if options.durability != before.durability:
        raise OptionError(
            f"The durability of topic {log.name!r} is for good: {_shown(before.durability)}. Give "
            "durability to each append instead, or create another topic."
        )
    return redefinition(log, options)


def redefinition(log: TopicLog, options: TopicOptions) -> Control:
    """The frame that gives a topic these options."""
    body = TopicBody(log.name, log.kind, log.created_at, options.to_dict(), log.epoch)
    return control(log, FrameType.TOPIC, log.version + 1, encode_topic(body))


def _shown(value: Any) -> str:
    return str(value) if isinstance(value, str) else repr(value)
