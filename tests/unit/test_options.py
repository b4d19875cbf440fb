"""Options: validated when made, the same names everywhere, errors that say what to do."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest
from tests.conftest import OpenStore

from stratalog.errors import OptionError, UsageError, WrongTypeError
from stratalog.model import Durability
from stratalog.options import (
    SECONDS_MAX,
    TIME_MAX,
    QueueOptions,
    StoreOptions,
    TopicOptions,
    check_durability,
    check_known,
    check_range,
    seconds,
)


def test_defaults_are_durable() -> None:
    """The default is fsync."""
    options = StoreOptions.build({}, {})
    assert options == StoreOptions()
    assert options.durability is Durability.FSYNC
    assert 1 <= options.shards <= 8


def test_given_options_are_taken() -> None:
    """By name; text becomes the class it names."""
    options = StoreOptions.build({"durability": "disk", "shards": 3, "sync_interval": 5}, {})
    assert options.durability is Durability.DISK
    assert (options.shards, options.sync_interval) == (3, 5)


def test_none_is_the_default() -> None:
    """An argument passed on as None is one that was not given."""
    assert StoreOptions.build({"durability": None, "shards": None}, {}) == StoreOptions()


def test_options_cannot_be_changed() -> None:
    """Validated options stay valid."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        StoreOptions().shards = 0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shards": 0}, "shards=0 is out of range: 1 to 256"),
        ({"shards": 257}, "shards=257 is out of range: 1 to 256"),
        ({"durability": "fsnyc"}, "durability='fsnyc' is not known: use one of ephemeral, memory"),
        ({"flush_interval": -1}, "flush_interval=-1 is out of range: 0.0 to 60.0 seconds"),
        ({"sync_interval": float("nan")}, "sync_interval=nan is out of range"),
        ({"sync_interval": float("inf")}, "sync_interval=inf is out of range"),
        ({"log_file_bytes": 100}, "log_file_bytes=100 is out of range: 4096 to"),
        ({"log_chunk_bytes": 100}, "log_chunk_bytes=100 is out of range: 4096 to"),
        ({"record_bytes_max": (1 << 30) + 1}, "record_bytes_max=1073741825 is out of range"),
        ({"batch_bytes_max": 0}, "batch_bytes_max=0 is out of range"),
        ({"disk_reserve_bytes": -1}, "disk_reserve_bytes=-1 is out of range: 0 to"),
        ({"tail_bytes": 0}, "tail_bytes=0 is out of range"),
    ],
)
def test_a_value_out_of_range_is_refused_with_the_range(
    options: dict[str, Any], message: str
) -> None:
    """The message has the name, the value and what is possible."""
    with pytest.raises(OptionError, match=message):
        StoreOptions.build(options, {})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shards": 1.5}, "shards=1.5 must be a whole number"),
        ({"shards": True}, "shards=True must be a whole number"),
        ({"shards": "2"}, "shards='2' must be a whole number"),
        ({"sync_interval": "1"}, "sync_interval='1' must be a number of seconds"),
        ({"sync_interval": True}, "sync_interval=True must be a number of seconds"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(options: dict[str, Any], message: str) -> None:
    """True is not a number of shards."""
    with pytest.raises(WrongTypeError, match=message):
        StoreOptions.build(options, {})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("shard", r"unknown store option 'shard': did you mean 'shards'\?"),
        ("sync_intervall", r"did you mean 'sync_interval'\?"),
        ("xyzzy", "unknown store option 'xyzzy': known are durability, shards"),
    ],
)
def test_an_unknown_store_option_is_refused_with_a_suggestion(name: str, message: str) -> None:
    """A typing error is not an option that silently does nothing."""
    with pytest.raises(OptionError, match=message):
        StoreOptions.build({name: 1}, {})


def test_every_option_can_come_from_the_environment() -> None:
    """The name in capitals, after STRATALOG_."""
    defaults = StoreOptions()
    values = {f.name: getattr(defaults, f.name) for f in dataclasses.fields(defaults)}
    changed: dict[str, Any] = {
        name: {"durability": Durability.DISK, "cold": "elsewhere", "lake": "there"}.get(name)
        or value * 2
        for name, value in values.items()
    }
    environment = {f"STRATALOG_{name.upper()}": str(value) for name, value in changed.items()}
    assert StoreOptions.build({}, environment) == StoreOptions(**changed)


def test_what_is_given_beats_the_environment() -> None:
    """Unless it is None, which is not given."""
    environment = {"STRATALOG_SHARDS": "5"}
    assert StoreOptions.build({"shards": 2}, environment).shards == 2
    assert StoreOptions.build({"shards": None}, environment).shards == 5


def test_the_real_environment_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """When no other is passed in."""
    monkeypatch.setenv("STRATALOG_SHARDS", "7")
    assert StoreOptions.build({}).shards == 7


def test_other_variables_are_left_alone() -> None:
    """Other tools may use the prefix, and options have no meaning without it."""
    environment = {"STRATALOG_FUZZ": "x", "SHARDS": "9", "stratalog_shards": "9", "PATH": "/"}
    assert StoreOptions.build({}, environment) == StoreOptions()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("STRATALOG_SHARDS", "many", "STRATALOG_SHARDS='many' is not a number"),
        ("STRATALOG_SHARDS", "1.5", "STRATALOG_SHARDS='1.5' is not a number"),
        ("STRATALOG_SYNC_INTERVAL", "", "STRATALOG_SYNC_INTERVAL='' is not a number"),
        ("STRATALOG_SHARDS", "0", "shards=0 is out of range"),
        ("STRATALOG_DURABILITY", "safe", "durability='safe' is not known: use one of"),
    ],
)
def test_a_bad_variable_is_refused_by_its_name(name: str, text: str, message: str) -> None:
    """The message names the variable or the option it sets."""
    with pytest.raises(OptionError, match=message):
        StoreOptions.build({}, {name: text})


def test_topic_options_remember_what_is_not_default() -> None:
    """The logged form is small, and comes back the same."""
    assert TopicOptions().to_dict() == {}
    options = TopicOptions.build({"durability": "disk", "compression": "zstd", "ttl": 5})
    assert options.to_dict() == {"durability": "disk", "compression": "zstd", "ttl": 5.0}
    assert type(options.to_dict()["durability"]) is str
    assert TopicOptions.build(options.to_dict()) == options


def test_a_time_to_live_may_be_a_timedelta() -> None:
    """It is seconds from then on."""
    assert TopicOptions(ttl=timedelta(minutes=1)).ttl == 60.0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compression": "brotli"}, "compression='brotli' is not known: use one of none, zstd"),
        ({"compression": None}, "compression=None is not known"),
        ({"durability": "safe"}, "durability='safe' is not known: use one of"),
        ({"compresion": "zstd"}, r"unknown topic option 'compresion': did you mean 'compression'"),
        ({"ttl": 0}, "ttl=0 must be more than 0 seconds"),
        ({"ttl": -1.5}, "ttl=-1.5 must be more than 0 seconds"),
        ({"ttl": 1e-10}, "ttl=1e-10 must be more than 0 seconds"),
        ({"ttl": float("nan")}, "ttl=nan must be"),
        ({"ttl": float("inf")}, "ttl=inf must be"),
        ({"ttl": 1e10}, r"ttl=10000000000.0 must be .* at most 1000000000 \(31 years\)"),
    ],
)
def test_a_bad_topic_option_is_refused(options: dict[str, Any], message: str) -> None:
    """The message says which values there are."""
    with pytest.raises(OptionError, match=message):
        TopicOptions.build(options)


@pytest.mark.parametrize("value", [True, "5", None, [1]])
def test_a_duration_is_a_number_or_a_timedelta(value: Any) -> None:
    """Anything else is a wrong type, and the message has it."""
    with pytest.raises(WrongTypeError, match=r"ttl=.* must be seconds or a timedelta"):
        seconds("ttl", value)


NEVER_NONE = [
    (options, field.name)
    for options in (TopicOptions, QueueOptions)
    for field in dataclasses.fields(options)
    if "None" not in str(field.type)
]


@pytest.mark.parametrize(("options", "name"), NEVER_NONE)
def test_none_is_refused_where_it_means_nothing(
    options: type[TopicOptions] | type[QueueOptions], name: str, open_store: OpenStore
) -> None:
    """A queue made with lease=None was there for good, and raised TypeError whatever was done."""
    store = open_store(background=False)
    make: Any = store.create_topic if options is TopicOptions else store.queue
    with pytest.raises(UsageError, match=f"{name}=None"):
        make("t", **{name: None})
    assert store.topics() == []


@pytest.mark.parametrize(("options", "name"), NEVER_NONE)
def test_a_none_that_an_earlier_release_stored_is_the_default(
    options: type[TopicOptions] | type[QueueOptions], name: str
) -> None:
    """Or a store that has one could not be opened any more."""
    assert options.restore({name: None}) == options()


def test_the_latest_time_and_the_longest_duration_fit_together() -> None:
    """Their sum is still 64 bits, so a record can always be given its expiry.

    A longer one made the commit of the whole group fail, long after the call that asked for it.
    """
    assert TIME_MAX + round(seconds("ttl", SECONDS_MAX) * 10**9) == (1 << 63) - 1


def test_a_range_includes_its_ends() -> None:
    """Both of them."""
    assert [check_range("n", value, 1, 3) for value in (1, 3)] == [1, 3]
    for value in (0, 4):
        with pytest.raises(OptionError, match=f"n={value} is out of range: 1 to 3"):
            check_range("n", value, 1, 3)


@pytest.mark.parametrize("value", ["fsync", Durability.FSYNC])
def test_a_durability_is_known_by_name_and_by_itself(value: Any) -> None:
    """Text and the enumeration are the same to callers."""
    assert check_durability(value) is Durability.FSYNC


@pytest.mark.parametrize("value", ["FSYNC", "", None, 3, ["fsync"]])
def test_an_unknown_durability_is_refused_with_all_there_are(value: Any) -> None:
    """The list is in the message, from least to most."""
    with pytest.raises(OptionError, match="use one of ephemeral, memory, disk, fsync"):
        check_durability(value)


def test_names_that_are_not_text_are_unknown_too() -> None:
    """A number where a name should be is refused like any other name."""
    with pytest.raises(OptionError, match="unknown column 5: known are a, b"):
        check_known("column", [5], ["a", "b"])  # type: ignore[list-item]
