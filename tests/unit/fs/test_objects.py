"""Object stores: unreachable in bounded time, credentials kept, uploads that were broken off."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import obstore
import pytest

from stratalog.errors import ColdStoreError, StorageError
from stratalog.fs import File, objects
from stratalog.fs.cold import ColdStore, open_cold
from stratalog.testing import FakeDisk, Fault, FaultFs

NAME = "000000000000002a/00000000000000001000.seg"
SECRET = "hunter2+/="
CREDENTIALS = "me:hunter2%2B%2F%3D"
MIB = 1 << 20

# An operation against a store that is not there, with room for a slow machine.
SECONDS_MAX = 9.0

# A location of each kind, to be completed by the options that all of them know.
KINDS = {
    "s3": f"s3://{CREDENTIALS}@bucket/prefix?region=us-east-1",
    "gs": "gs://bucket/prefix?skip_signature=false",
    "az": "az://bucket/prefix?account_name=account",
}

CALLS: dict[str, Callable[[ColdStore], object]] = {
    "put": lambda cold: cold.put(NAME, _source()),
    "read": lambda cold: cold.read(NAME, 0, 1),
    "look for": lambda cold: cold.size(NAME),
    "delete": lambda cold: cold.delete(NAME),
    "list": lambda cold: cold.names("000000000000002a/"),
}


def _source(data: bytes = b"data", *faults: Fault) -> File:
    fs = FaultFs(FakeDisk())
    file = fs.open("/file", "create")
    file.pwrite([data], 0)
    for fault in faults:
        fs.add(fault)
    return file


def _open(endpoint: str, prefix: str = "prefix", bucket: str = "bucket") -> Any:
    options = f"endpoint_override={endpoint}&scheme=http&region=us-east-1"
    return open_cold(f"s3://{CREDENTIALS}@{bucket}/{prefix}?{options}", FakeDisk())


def _open_kind(kind: str, endpoint: str) -> Any:
    return open_cold(f"{KINDS[kind]}&endpoint=http://{endpoint}", FakeDisk())


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made up, so that no test asks for real ones."""
    # What a local Google emulator takes: no token is asked for.
    account = {"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(account))
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "aHVudGVyMg==")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "me")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")


@pytest.fixture
def refusing() -> Iterator[str]:
    """An endpoint that refuses connections: bound, so that no other process gets it, but deaf."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def silent() -> Iterator[str]:
    """An endpoint that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def dropping() -> Iterator[str]:
    """An endpoint that connections never reach: its queue is full, so packets are dropped."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        yield f"127.0.0.1:{server.getsockname()[1]}"


@contextmanager
def _answering(status: int, body: str, content_type: str = "application/xml") -> Iterator[str]:
    """An endpoint that gives every request the same answer."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # called so by the server, like the rest
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body.encode())

        def __getattr__(self, name: str) -> Any:
            if name.startswith("do_"):
                return self.do_GET
            raise AttributeError(name)

        def log_message(self, format: str, *values: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


# A store that is not there.


@pytest.mark.parametrize("what", CALLS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_store_that_cannot_be_reached_is_an_error_soon(
    refusing: str, kind: str, what: str
) -> None:
    """The message says what failed, where and why, and what to do; opening asks nothing yet."""
    cold = _open_kind(kind, refusing)
    began = time.monotonic()
    message = rf"cannot {what} .*: Connection refused: .*works on; check"
    with pytest.raises(ColdStoreError, match=message) as caught:
        CALLS[what](cold)
    assert time.monotonic() - began < SECONDS_MAX
    assert f"{kind}://bucket/prefix?" in str(caught.value)
    assert f"endpoint=http://{refusing}" in str(caught.value)
    assert "Debug" not in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("what", CALLS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_store_that_never_answers_is_an_error_soon(
    silent: str, kind: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a large upload may take its time: no answer has come yet."""
    monkeypatch.setattr(objects, "_STALL_SECONDS", 0.3)
    monkeypatch.setattr(objects, "_RETRY_SECONDS", 0.3)
    began = time.monotonic()
    with pytest.raises(ColdStoreError, match="no answer in time"):
        CALLS[what](_open_kind(kind, silent))
    assert time.monotonic() - began < SECONDS_MAX


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_whose_packets_are_lost_is_an_error_soon(
    dropping: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a firewall in between."""
    monkeypatch.setattr(objects, "_CONNECT_SECONDS", 0.3)
    began = time.monotonic()
    with pytest.raises(ColdStoreError, match="no answer in time"):
        _open_kind(kind, dropping).put(NAME, _source())
    assert time.monotonic() - began < SECONDS_MAX


def test_the_bounds_are_a_few_seconds() -> None:
    """A last attempt that begins just in time, and takes as long as it may."""
    attempt = max(objects._CONNECT_SECONDS, objects._STALL_SECONDS)
    assert objects._RETRY_SECONDS + attempt < SECONDS_MAX
    assert 10 * attempt < objects._REQUEST_SECONDS


@pytest.mark.slow
def test_a_forked_process_is_told_instead_of_waiting_for_ever(refusing: str) -> None:
    """obstore's threads do not survive a fork: a call in the child hung until it was killed.

    A fork before the first call does no harm. In a process of its own, as pytest has threads.
    """
    code = f"""
import os, sys
from stratalog.errors import ColdStoreError
from stratalog.fs.cold import open_cold
from stratalog.testing import FakeDisk

cold = open_cold("s3://me:secret@bucket?endpoint=http://{refusing}", FakeDisk())
for turn in ("Connection refused", "spawn it instead"):
    child = os.fork()
    if child == 0:
        try:
            cold.size("a/b")
        except ColdStoreError as error:
            os._exit(0 if turn in str(error) else 1)
        os._exit(2)
    if os.waitpid(child, 0)[1]:
        sys.exit(turn)
    try:
        cold.size("a/b")
    except ColdStoreError:
        pass
"""
    # Python 3.12 warns of a fork beside threads, which is the point here.
    command = [sys.executable, "-W", "ignore", "-c", code]
    subprocess.run(command, check=True, timeout=60)


@pytest.mark.parametrize("kind", KINDS)
def test_credentials_that_are_not_taken_are_an_error(kind: str) -> None:
    """Whatever is asked, and the store's own words say why."""
    body = "<?xml version='1.0'?><Error><Code>No</Code><Message>Go\naway.</Message></Error>"
    with _answering(403, body) as endpoint:
        cold = _open_kind(kind, endpoint)
        for what, call in CALLS.items():
            with pytest.raises(ColdStoreError, match=f"cannot {what} .*403") as caught:
                call(cold)
            if what != "look for":  # to which there is no text
                assert "Go away.: " in str(caught.value)
            assert "<" not in str(caught.value)
            assert "hunter2" not in str(caught.value)


# Azure is asked in batches: its answer holds one answer for each object.
BATCH = (
    "--b\r\nContent-Type: application/http\r\nContent-ID: 0\r\n\r\n"
    "HTTP/1.1 404 The specified blob does not exist.\r\nx-ms-error-code: BlobNotFound\r\n\r\n"
    "\r\n--b--\r\n"
)


@pytest.mark.parametrize(
    ("kind", "status", "body", "content_type"),
    [
        ("s3", 404, "<Error><Code>NoSuchKey</Code></Error>", "application/xml"),
        ("gs", 404, "<Error><Code>NoSuchKey</Code></Error>", "application/xml"),
        ("az", 202, BATCH, "multipart/mixed; boundary=b"),
    ],
)
def test_what_is_gone_already_is_deleted(
    kind: str, status: int, body: str, content_type: str
) -> None:
    """Not every store says yes to that, but all of them mean it."""
    with _answering(status, body, content_type) as endpoint:
        _open_kind(kind, endpoint).delete(NAME)


@pytest.mark.parametrize("code", ["NoSuchBucket", "ContainerNotFound"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_bucket_that_is_gone_is_not_an_object_that_is_gone(kind: str, code: str) -> None:
    """The message names the bucket, and nothing counts as deleted."""
    body = f"<Error><Code>{code}</Code><Message>There is no such bucket</Message></Error>"
    with _answering(404, body) as endpoint:
        cold = _open_kind(kind, endpoint)
        for what in ("put", "read", "delete", "list"):
            with pytest.raises(ColdStoreError, match=f"cannot {what} .*: There is no such bucket"):
                CALLS[what](cold)


def test_a_bucket_that_is_not_there_is_an_error(s3_endpoint: str) -> None:
    """Buckets are the operator's: none is made."""
    cold = _open(s3_endpoint, bucket="no-such-bucket")
    for what in ("put", "read", "delete", "list"):
        with pytest.raises(ColdStoreError, match=rf"cannot {what} .*bucket does not exist"):
            CALLS[what](cold)


# Uploads.


def _uploads_under_way(endpoint: str) -> int:
    with urllib.request.urlopen(f"http://{endpoint}/bucket?uploads", timeout=10) as answer:
        return len(re.findall("<UploadId>", answer.read().decode()))


@pytest.mark.parametrize("size", [5 * MIB, 5 * MIB + 1, 23 * MIB + 7])
def test_a_large_object_arrives_whole(s3_endpoint: str, size: int) -> None:
    """In one part or in several."""
    cold = _open(s3_endpoint, uuid.uuid4().hex)
    data = (bytes(range(251)) * (size // 251 + 1))[:size]
    cold.put(NAME, _source(data))
    assert cold.size(NAME) == size
    assert cold.read(NAME, 0, size) == data
    cold.delete(NAME)


def test_an_upload_that_breaks_off_leaves_nothing(s3_endpoint: str) -> None:
    """Parts that had arrived are dropped."""
    cold = _open(s3_endpoint, uuid.uuid4().hex)
    before = _uploads_under_way(s3_endpoint)
    with pytest.raises(StorageError, match="/file cannot be read") as caught:
        cold.put(NAME, _source(bytes(20 * MIB), Fault(operation="pread", call=18)))
    assert not isinstance(caught.value, ColdStoreError)
    assert cold.size(NAME) is None
    assert _uploads_under_way(s3_endpoint) == before


def test_an_object_that_comes_up_meanwhile_is_not_replaced(
    s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was not there when it was looked for: the store itself refuses the second one."""
    cold = _open(s3_endpoint, uuid.uuid4().hex)
    assert cold.put(NAME, _source(b"first"))

    def missing(*_: object) -> None:
        raise FileNotFoundError

    with monkeypatch.context() as patch:
        patch.setattr(obstore, "head", missing)
        assert not cold.put(NAME, _source(b"second"))
    assert cold.read(NAME, 0, 5) == b"first"
    assert cold.size(NAME) == 5


def test_uploads_under_way_are_seen_by_these_tests(s3_endpoint: str) -> None:
    """Otherwise the test above would prove nothing."""
    before = _uploads_under_way(s3_endpoint)
    url = f"http://{s3_endpoint}/bucket/left?uploads"
    with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=10):
        assert _uploads_under_way(s3_endpoint) == before + 1


def test_bytes_that_get_lost_on_the_way_are_an_error(
    s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer than asked for, of an object that has them all."""
    cold = _open(s3_endpoint, uuid.uuid4().hex)
    cold.put(NAME, _source(b"data"))
    monkeypatch.setattr(obstore, "get_range", lambda *_, **__: b"da")
    with pytest.raises(ColdStoreError, match=r"cannot read .*2 bytes arrived of 4"):
        cold.read(NAME, 0, 4)


# Where it is.


def test_a_store_may_be_a_whole_bucket(s3_endpoint: str) -> None:
    """Without a prefix, with and without a slash."""
    for location in ("s3://me:secret@bucket", "s3://me:secret@bucket/", "s3a://me:secret@bucket"):
        cold = open_cold(f"{location}?endpoint_override={s3_endpoint}&scheme=http", FakeDisk())
        cold.put("alone/object", _source())
        assert cold.names("alone/") == ["alone/object"]
        cold.delete("alone/object")
        assert cold.names("alone/") == []


def test_a_prefix_is_decoded_and_kept_apart_from_its_neighbours(s3_endpoint: str) -> None:
    """`a b` is not `a bc`, and what is stored is not percent signs."""
    unique = uuid.uuid4().hex
    one, other = _open(s3_endpoint, f"{unique}/a%20b"), _open(s3_endpoint, f"{unique}/a%20bc/")
    one.put(NAME, _source())
    assert (one.names(""), other.names("")) == ([NAME], [])
    paths = [
        found["path"]
        for batch in obstore.list(_open(s3_endpoint, unique)._store)
        for found in batch
    ]
    assert paths == [f"a b/{NAME}"]


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        (f"s3://{CREDENTIALS}@bucket/a?region=x", "s3://bucket/a?region=x"),
        (
            "s3://bucket/a%20b?endpoint_override=host%3A1",
            "s3://bucket/a%20b?endpoint_override=host:1",
        ),
        ("gs://bucket/a", "gs://bucket/a"),
        ("gcs://bucket?skip_signature=true", "gcs://bucket?skip_signature=true"),
        ("az://container/a?account_name=me", "az://container/a?account_name=me"),
        ("abfss://c@me.dfs.core.windows.net/a", "abfss://c@me.dfs.core.windows.net/a"),
    ],
)
def test_a_location_is_shown_without_credentials(location: str, shown: str) -> None:
    """As it was given otherwise."""
    cold = open_cold(location, FakeDisk())
    assert cold.location == shown
    assert "hunter2" not in repr(cold)


@pytest.mark.parametrize(
    ("location", "place"),
    [
        ("s3://bucket/a", "S3Store bucket None"),
        ("s3a://bucket/a", "S3Store bucket None"),
        ("gs://bucket/a", "GCSStore bucket None"),
        ("gcs://bucket/a", "GCSStore bucket None"),
        ("az://box/a?account_name=me", "AzureStore box me"),
        ("azure://box/a?account_name=me", "AzureStore box me"),
        ("adl://box/a?account_name=me", "AzureStore box me"),
        ("abfs://box/a?account_name=me", "AzureStore box me"),
        ("abfs://box@me.dfs.core.windows.net/a", "AzureStore box me"),
        ("ABFSS://box@me.dfs.core.windows.net/a/", "AzureStore box me"),
    ],
)
def test_every_kind_of_url_leads_to_its_store(location: str, place: str) -> None:
    """Bucket or container, account and prefix."""
    cold: Any = open_cold(location, FakeDisk())
    for store in (cold._store, cold._uploads):
        config = store.config
        bucket = config.get("bucket") or config.get("container_name")
        assert f"{type(store).__name__} {bucket} {config.get('account_name')}" == place
        assert store.prefix == "a"


@pytest.mark.parametrize(
    ("options", "endpoint", "allow_http"),
    [
        ("endpoint=http://host:1", "http://host:1", "true"),
        ("endpoint=https://host:1", "https://host:1", None),
        ("endpoint=host:1&scheme=http", "http://host:1", "true"),
        ("endpoint_override=host:1&scheme=http", "http://host:1", "true"),
        ("endpoint_override=host:1", "https://host:1", None),
        ("allow_http=true", None, "true"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_an_endpoint_is_given_in_several_ways(
    kind: str, options: str, endpoint: str | None, allow_http: str | None
) -> None:
    """Plain http only where the caller asked for it."""
    cold: Any = open_cold(f"{KINDS[kind]}&{options}", FakeDisk())
    config = cold._store.config
    assert config.get("base_url" if kind == "gs" else "endpoint") == endpoint
    assert cold._store.client_options.get("allow_http") == allow_http


def test_credentials_of_the_url_are_used() -> None:
    """Decoded, before those of the environment, and passed on with the region."""
    cold: Any = open_cold(f"s3://{CREDENTIALS}@bucket/a?region=x", FakeDisk())
    config = cold._store.config
    assert (config["access_key_id"], config["secret_access_key"]) == ("me", SECRET)
    assert config["region"] == "x"
