"""Object stores: unreachable in bounded time, credentials kept, uploads that were given up."""

from __future__ import annotations

import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from stratalog.errors import ColdStoreError
from stratalog.fs import File, objects
from stratalog.fs.cold import ColdStore, open_cold
from stratalog.testing import FakeDisk

NAME = "000000000000002a/00000000000000001000.seg"
SECRET = "hunter2+/="
CREDENTIALS = "me:hunter2%2B%2F%3D"

# An operation against a store that refuses connections, with room for a slow machine.
SECONDS_MAX = 6.0

CALLS: dict[str, Callable[[ColdStore], object]] = {
    "put": lambda cold: cold.put(NAME, _source()),
    "read": lambda cold: cold.read(NAME, 0, 1),
    "look for": lambda cold: cold.size(NAME),
    "delete": lambda cold: cold.delete(NAME),
    "list": lambda cold: cold.names("000000000000002a/"),
}


def _source(data: bytes = b"data") -> File:
    disk = FakeDisk()
    file = disk.open("/file", "create")
    file.pwrite([data], 0)
    return file


def _open(endpoint: str, prefix: str = "prefix") -> Any:
    options = f"endpoint_override={endpoint}&scheme=http&region=us-east-1"
    return open_cold(f"s3://{CREDENTIALS}@bucket/{prefix}?{options}", FakeDisk())


def _wait_for_calls_given_up() -> None:
    for thread in threading.enumerate():
        if thread.name == "stratalog-cold":
            thread.join(20)


@pytest.fixture
def refusing() -> Iterator[str]:
    """An endpoint that refuses connections: bound, so that nobody else gets it, but deaf."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def silent() -> Iterator[str]:
    """An endpoint that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("what", CALLS)
def test_a_store_that_cannot_be_reached_is_an_error_soon(refusing: str, what: str) -> None:
    """The message says what failed, where and why, and what to do; opening asks nothing yet."""
    cold = _open(refusing)
    began = time.monotonic()
    with pytest.raises(ColdStoreError, match=f"cannot {what} .*onnect.*works on; check") as caught:
        CALLS[what](cold)
    assert time.monotonic() - began < SECONDS_MAX
    assert f"s3://bucket/prefix?endpoint_override={refusing}" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_store_that_never_answers_is_an_error_soon(
    silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client of S3 gives up by itself, where by default it would try for 99 seconds."""
    monkeypatch.setattr(objects, "_STALL_SECONDS", 1.0)
    began = time.monotonic()
    with pytest.raises(ColdStoreError, match="Timeout"):
        _open(silent).read(NAME, 0, 1)
    assert time.monotonic() - began < SECONDS_MAX


def test_a_client_that_does_not_give_up_is_given_up(
    silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not every client can be told when to stop waiting."""
    monkeypatch.setattr(objects, "_STALL_SECONDS", 1.0)
    monkeypatch.setattr(objects, "_CALL_SECONDS", 0.1)
    began = time.monotonic()
    with pytest.raises(ColdStoreError, match="no answer within 0 s"):
        _open(silent).size(NAME)
    assert time.monotonic() - began < 0.9
    _wait_for_calls_given_up()


class _Slow:
    """Something with one method that waits until it is let go."""

    def __init__(self, inner: Any, method: str) -> None:
        self.go = threading.Event()
        self._inner = inner
        self._method = method

    def __getattr__(self, name: str) -> Any:
        if name == self._method:
            assert self.go.wait(20)
        return getattr(self._inner, name)


@pytest.mark.parametrize("moment", ["reading", "comparing"])
def test_a_put_that_was_given_up_never_takes_the_name(
    s3_endpoint: str, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """It runs on unseen, and disturbs neither the old object nor the put that is tried next."""
    cold = _open(s3_endpoint, uuid.uuid4().hex)
    source: Any = _source(b"given up")
    with monkeypatch.context() as patch:
        if moment == "reading":
            slow = source = _Slow(source, "pread")
        else:
            slow = _Slow(cold._fs, "get_file_info")
            patch.setattr(cold, "_fs", slow)
        patch.setattr(objects, "_CALL_SECONDS", 0.3)
        with pytest.raises(ColdStoreError, match="no answer"):
            cold.put(NAME, source)
    cold.put(NAME, _source(b"tried next"))
    slow.go.set()
    _wait_for_calls_given_up()
    assert cold.read(NAME, 0, 10) == b"tried next"
    assert cold._search("") == [NAME]


def test_an_upload_that_lost_bytes_never_takes_the_name(
    s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes are compared before the object can be seen."""
    cold = _open(s3_endpoint, uuid.uuid4().hex)
    cold.put(NAME, _source(b"old"))
    monkeypatch.setattr(objects, "pieces", lambda source: [b"ne"])
    with pytest.raises(ColdStoreError, match="2 bytes arrived of 3"):
        cold.put(NAME, _source(b"new"))
    assert cold.read(NAME, 0, 3) == b"old"
    assert cold._search("") == [NAME]


def test_what_a_crash_left_is_not_listed_and_goes_with_its_object(s3_endpoint: str) -> None:
    """A temporary object is nobody's, but that of another name stays."""
    cold = _open(s3_endpoint, uuid.uuid4().hex)
    cold.put(NAME, _source())
    for left in (f"{NAME}.00ff.tmp", f"{NAME}2.00ff.tmp"):
        with cold._fs.open_output_stream(cold._path(left)) as stream:
            stream.write(b"half")
    assert cold.names("") == [NAME]
    cold.delete(NAME)
    assert cold._search("") == [f"{NAME}2.00ff.tmp"]


def test_a_bucket_that_is_not_there_is_an_error(s3_endpoint: str) -> None:
    """Buckets are the operator's: none is made."""
    options = f"endpoint_override={s3_endpoint}&scheme=http"
    cold = open_cold(f"s3://{CREDENTIALS}@no-such-bucket/x?{options}", FakeDisk())
    with pytest.raises(ColdStoreError, match=r"cannot put .*bucket"):
        cold.put(NAME, _source())


def test_a_store_may_be_a_whole_bucket(s3_endpoint: str) -> None:
    """Without a prefix, with and without a slash."""
    for location in ("s3://me:secret@bucket", "s3://me:secret@bucket/"):
        cold = open_cold(f"{location}?endpoint_override={s3_endpoint}&scheme=http", FakeDisk())
        cold.put("alone/object", _source())
        assert cold.names("alone/") == ["alone/object"]
        cold.delete("alone/object")
        assert cold.names("alone/") == []


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        (f"s3://{CREDENTIALS}@bucket/a?region=x", "s3://bucket/a?region=x"),
        (
            "s3://bucket/a%20b?endpoint_override=host%3A1",
            "s3://bucket/a%20b?endpoint_override=host:1",
        ),
        ("gs://anonymous@bucket/a", "gs://anonymous@bucket/a"),
        ("gcs://anonymous@bucket?project_id=p", "gcs://anonymous@bucket?project_id=p"),
    ],
)
def test_a_location_is_shown_without_credentials(location: str, shown: str) -> None:
    """As it was given otherwise."""
    cold = open_cold(location, FakeDisk())
    assert cold.location == shown
    assert "hunter2" not in repr(cold)


def test_credentials_of_the_url_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoded, and passed on with the options and the timeouts."""
    import pyarrow.fs

    given: dict[str, Any] = {}
    monkeypatch.setattr(pyarrow.fs, "S3FileSystem", lambda **values: given.update(values))
    open_cold(f"s3://{CREDENTIALS}@bucket/a?region=x&allow_delayed_open=true", FakeDisk())
    assert (given["access_key"], given["secret_key"]) == ("me", SECRET)
    assert (given["region"], given["allow_delayed_open"]) == ("x", True)
    assert given["connect_timeout"] + given["request_timeout"] < SECONDS_MAX
