"""Options that are given later, and options from the environment and from a file."""

from __future__ import annotations

import dataclasses
import errno
import re
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from tests.conftest import OpenStore

import stratalog
from stratalog import (
    ClosedError,
    OptionError,
    QueueOptions,
    ReadOnlyError,
    Store,
    StoreOptions,
    TopicExistsError,
    TopicOptions,
    UnknownTopicError,
    WrongKindError,
    WrongTypeError,
)
from stratalog.options import OF_TYPES
from stratalog.settings import (
    Configuration,
    NewTopicSettings,
    QueueSettings,
    StoreSettings,
    TopicSettings,
    from_environment,
    from_toml,
)
from stratalog.testing import FakeDisk, Fault, FaultFs, ManualClock


def test_settings_name_every_option_there_is() -> None:
    """A type checker accepts what the options take."""
    names = {kind: {f.name for f in dataclasses.fields(kind)} for kind in (
        StoreOptions, TopicOptions, QueueOptions
    )}  # fmt: skip
    named_by_open = {"durability", "shards", "memory_bytes", "cold", "lake"}
    assert set(get_type_hints(StoreSettings)) | named_by_open == names[StoreOptions]
    given = names[TopicOptions] - set(OF_TYPES)
    assert set(get_type_hints(NewTopicSettings)) == given
    assert set(get_type_hints(TopicSettings)) == given - {"durability"}
    assert set(get_type_hints(QueueSettings)) == names[QueueOptions]


def test_a_topic_is_made_once_and_then_returned(open_store: OpenStore) -> None:
    """With `exist_ok`, as long as it has the options that are given; others are left alone."""
    store = open_store()
    first = store.create_topic("t", exist_ok=True, compression="zstd", ttl=60.0)
    assert store.create_topic("t", exist_ok=True, compression="zstd") is first
    assert store.create_topic("t", exist_ok=True) is first
    assert store.create_topic("t", exist_ok=True, ttl=timedelta(minutes=1)) is first
    with pytest.raises(OptionError, match=r"exists with compression=zstd, not lz4\. Change it"):
        store.create_topic("t", exist_ok=True, compression="lz4")
    with pytest.raises(TopicExistsError):
        store.create_topic("t")
    store.queue("q")
    with pytest.raises(WrongKindError):
        store.create_topic("q", exist_ok=True)
    assert first.options == TopicOptions(compression="zstd", ttl=60.0)


def test_options_can_change_and_stay_changed(open_store: OpenStore) -> None:
    """Those that are not given stay as they are; a reader and the next process see them."""
    store = open_store()
    topic = store.create_topic("t", ttl=60.0)
    view = open_store(read_only=True)
    topic.alter(compression="zstd", retention_bytes=1 << 20)
    expected = TopicOptions(compression="zstd", ttl=60.0, retention_bytes=1 << 20)
    assert topic.options == expected
    assert view.topic("t").options == expected
    topic.alter(ttl=None)
    topic.alter()
    expected = dataclasses.replace(expected, ttl=None)
    store.snapshot()
    store.close()
    again = open_store()
    assert again.topic("t").options == expected


def test_new_options_are_gone_by_at_once(open_store: OpenStore) -> None:
    """Compression of the next batch, a time to live of every record, sizes of segments."""
    clock = ManualClock()
    store = open_store(clock=clock, background=False)
    topic = store.topic("t")
    repeated = b"the same again and again " * 100
    topic.append_many([repeated] * 10)
    before = topic.stats().bytes
    topic.alter(compression="zstd")
    topic.append_many([repeated] * 10)
    assert topic.stats().bytes - before < before / 4
    assert topic.read_values() == [repeated] * 20
    topic.alter(segment_records=5)
    store.checkpoint()
    assert topic.stats().segments >= 4
    clock.advance(60)
    topic.alter(ttl=30.0)
    assert topic.read_values() == []
    topic.alter(ttl=None)
    assert len(topic.read_values()) == 20


def test_options_change_while_threads_append(open_store: OpenStore) -> None:
    """A batch is compressed by one codec, and says which."""
    store = open_store(durability="disk")
    topic = store.topic("t")
    value = b"the same again and again " * 20

    def append() -> None:
        for _ in range(200):
            topic.append_many([value] * 3)

    threads = [threading.Thread(target=append) for _ in range(3)]
    for thread in threads:
        thread.start()
    for turn in range(12):
        topic.alter(compression=("zstd", "none", "lz4", "gzip")[turn % 4])
    for thread in threads:
        thread.join()
    store.checkpoint()
    assert topic.read_values() == [value] * 1800


def test_what_cannot_change_is_refused_and_nothing_changes(
    open_store: OpenStore, tmp_path: Path
) -> None:
    """Durability, options out of range, other kinds, dropped topics, views and closed stores."""
    store = open_store()
    topic = store.create_topic("t", durability="disk")
    queue = store.queue("q")
    for options, error in (
        ({"durability": "fsync"}, OptionError),
        ({"ttl": -1.0}, OptionError),
        ({"ttl": "1"}, WrongTypeError),
        ({"compression": "zip"}, OptionError),
        ({"compresion": "zstd"}, OptionError),
    ):
        with pytest.raises(error):
            topic.alter(compact=True, **options)
    assert topic.options == TopicOptions(durability="disk")  # type: ignore[arg-type]
    with pytest.raises(WrongKindError, match="is a queue"):
        queue.topic.alter(ttl=1.0)
    view = open_store(read_only=True).topic("t")
    with pytest.raises(ReadOnlyError):
        view.alter(ttl=1.0)
    store.drop_topic("t")
    with pytest.raises(UnknownTopicError):
        topic.alter(ttl=1.0)
    other = store.topic("other")
    store.close()
    with pytest.raises(ClosedError):
        other.alter(ttl=1.0)


def test_a_change_that_failed_has_changed_nothing() -> None:
    """The disk is full: the topic has its old options, and takes new ones later."""
    disk = FaultFs(FakeDisk())
    store = Store("/data", StoreOptions.build({}, {}), fs=disk, background=False)
    topic = store.topic("t")
    topic.append(b"a")
    disk.add(Fault(operation="pwrite", error=errno.ENOSPC))
    with pytest.raises(stratalog.StorageError):
        topic.alter(compression="zstd")
    assert topic.options.compression == "none"
    disk.clear()
    topic.alter(compression="zstd")
    assert topic.options.compression == "zstd"
    store.close()


# --- environment and files ---------------------------------------------------------------


def test_every_option_of_topics_and_queues_can_come_from_the_environment() -> None:
    """As text, after `STRATALOG_TOPIC_` and `STRATALOG_QUEUE_`."""
    topic: dict[str, Any] = {
        "durability": "disk", "compression": "zstd", "ttl": 5.0, "retention": "consumed",
        "retention_seconds": 60.0, "retention_bytes": 10, "retention_records": 7,
        "retention_segments_min": 3, "retention_segments_max": 5, "segment_records": 9,
        "segment_bytes": 8192, "segment_seconds": None, "compact": True, "tombstone_seconds": 2.0,
        "versions": 4, "lake": True, "lake_retention": 90.0,
    }  # fmt: skip
    queue: dict[str, Any] = {
        "delivery": "at_most_once", "lease": 60.0, "max_deliveries": 2, "backoff": 1.0,
        "backoff_max": 9.0, "dedup_window": 5.0, "dedup_entries": 10, "pending_max": 5,
        "promote_after": 3.0, "ttl": 8.0,
    }  # fmt: skip
    assert set(topic) == {one.name for one in dataclasses.fields(TopicOptions)} - set(OF_TYPES)
    assert set(queue) <= {field.name for field in dataclasses.fields(QueueOptions)}
    environment = {f"STRATALOG_TOPIC_{name.upper()}": str(value) for name, value in topic.items()}
    environment |= {f"STRATALOG_QUEUE_{name.upper()}": str(value) for name, value in queue.items()}
    environment |= {"STRATALOG_PATH": "there", "STRATALOG_SHARDS": "3", "STRATALOG_FUZZ": "x"}
    assert from_environment(environment) == Configuration("there", {"shards": 3}, topic, queue)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("STRATALOG_TOPIC_TTLL", "1", r"STRATALOG_TOPIC_TTLL: .*did you mean 'ttl'"),
        ("STRATALOG_TOPIC_COMPACT", "maybe", "must be true or false"),
        ("STRATALOG_TOPIC_TTL", "soon", "is not a number"),
        ("STRATALOG_QUEUE_LEASE", "0", "the environment: lease=0.0"),
        ("STRATALOG_SHARDS", "0", "the environment: shards=0 is out of range"),
    ],
)
def test_a_wrong_variable_is_named(name: str, text: str, message: str) -> None:
    """With what is wrong about it."""
    with pytest.raises(OptionError, match=message):
        from_environment({name: text})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("shards = 2", "unknown name 'shards'"),
        ("[store]\nshard = 2", "did you mean 'shards'"),
        ("[topic]\ncompression = 'zip'", "compression='zip' is not known"),
        ("[queue\n", "is not TOML"),
        ("store = 5", "must be a table"),
        ("path = 5", "path=5 must be text"),
    ],
)
def test_a_wrong_file_is_named(text: str, message: str) -> None:
    """With what is wrong in it."""
    with pytest.raises((OptionError, WrongTypeError), match=message) as caught:
        from_toml(text, "the.toml")
    assert "the.toml" in str(caught.value)


def test_a_call_beats_the_environment_which_beats_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the log remembers what a topic was created with."""
    file = tmp_path / "stratalog.toml"
    file.write_text(
        f"path = '{tmp_path / 'data'}'\n[store]\nshards = 1\nhot_segments = 9\n"
        "[topic]\nttl = 1.5\ncompression = 'lz4'\n[queue]\nlease = 7\nmax_deliveries = 3\n"
    )
    monkeypatch.setenv("STRATALOG_CONFIG", str(file))
    monkeypatch.setenv("STRATALOG_HOT_SEGMENTS", "8")
    monkeypatch.setenv("STRATALOG_TOPIC_COMPRESSION", "gzip")
    monkeypatch.setenv("STRATALOG_QUEUE_LEASE", "9")
    with stratalog.open(shards=2) as store:
        assert store.path == str(tmp_path / "data")
        assert (store.options.shards, store.options.hot_segments) == (2, 8)
        assert store.topic("a").options == TopicOptions(ttl=1.5, compression="gzip")
        made = store.create_topic("b", ttl=None, compression="none")
        assert made.options == TopicOptions()
        jobs = store.queue("jobs", max_deliveries=4)
        assert (jobs.options.lease, jobs.options.max_deliveries) == (9.0, 4)
    monkeypatch.delenv("STRATALOG_CONFIG")
    monkeypatch.delenv("STRATALOG_TOPIC_COMPRESSION")
    monkeypatch.setenv("STRATALOG_QUEUE_LEASE", "20")
    monkeypatch.setenv("STRATALOG_PATH", str(tmp_path / "data"))
    with stratalog.open() as store:
        assert store.topic("a").options == TopicOptions(ttl=1.5, compression="gzip")
        assert store.queue("jobs").options.lease == 9.0


def test_without_a_path_from_anywhere_there_is_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what can be given; a file that is not there is told as such."""
    monkeypatch.delenv("STRATALOG_PATH", raising=False)
    with pytest.raises(WrongTypeError, match="set STRATALOG_PATH"):
        stratalog.open()
    with pytest.raises(FileNotFoundError):
        stratalog.open("data", config="/nowhere/at.toml")


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Any]:
    """Run the command line on one store."""
    from typer.testing import CliRunner

    from stratalog.cli.app import app

    return lambda command, *args: CliRunner().invoke(
        app, [command, str(tmp_path / "cli"), *map(str, args)]
    )


@pytest.mark.slow
def test_the_command_line_creates_and_alters(run: Callable[..., Any], tmp_path: Path) -> None:
    """With options as text; without any it shows them; a topic that is not there is not made."""
    assert run("create", "t", "-o", "ttl=60", "-o", "compact=true").exit_code == 0
    assert run("create", "t").exit_code == 2
    assert run("create", "t", "--exist-ok", "-o", "ttl=60").exit_code == 0
    assert run("create", "t", "--exist-ok", "-o", "ttl=61").exit_code == 2
    assert run("alter", "t", "-o", "ttl=none", "-o", "segment_records=5").exit_code == 0
    shown = run("alter", "t").stdout
    assert re.search(r"segment_records\s+5", shown)
    assert run("alter", "nowhere", "-o", "ttl=1").exit_code == 2
    for wrong in ("ttl", "ttll=1", "ttl=soon", "durability=fsync"):
        assert run("alter", "t", "-o", wrong).exit_code == 2
    with stratalog.open(tmp_path / "cli", read_only=True) as store:
        assert store.topics() == ["t"]
        assert store.topic("t").options == TopicOptions(compact=True, segment_records=5)
