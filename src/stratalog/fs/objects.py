"""A cold store in an object store: S3 or Google Cloud Storage, through `pyarrow.fs`.

A stream of pyarrow cannot be aborted: closing it, and even forgetting it, completes the object
with what was written so far. So `put` streams to `<name>.<random>.tmp`, compares sizes, and has
the store copy that to the name, which no one can see half done. The random part keeps a `put` that
was given up, and still runs, away from the one that is tried next.

Every call runs in a thread of its own, so that the caller waits only so long: of the two clients
only that of S3 can be told to give up in time, and none can be interrupted by Ctrl-C. A call that
was given up runs on unseen until its client gives up too; a `put` then stops short of the name.

Why this library, and what was measured: docs/decisions/0006-cold-store.md.
"""

from __future__ import annotations

import contextlib
import queue
import re
import secrets
import threading
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlsplit, urlunsplit

from stratalog.errors import ColdStoreError, OptionError, StratalogError
from stratalog.fs import File
from stratalog.fs.cold import (
    TEMP_SUFFIX,
    check_name,
    check_open,
    cold_error,
    listed,
    missing_error,
    pieces,
    short_error,
)

# Two attempts, for stores that answer "slow down"; unreachable, that is 5 s at the worst.
_CONNECT_SECONDS = 2.0
_STALL_SECONDS = 2.0
_ATTEMPTS = 2

# When to give a call up: this long, and the time its bytes take on a slow line (1 Mbit/s).
_CALL_SECONDS = 8.0
_BYTES_PER_SECOND_MIN = 128 << 10

_RANDOM_BYTES = 8

_SECRETS = ("key", "password", "secret", "sig", "token")

# What `S3FileSystem` takes of the options that pyarrow knows in an S3 URL.
_S3_TEXTS = ("endpoint_override", "region", "scheme", "tls_ca_file_path")
_S3_FLAGS = ("allow_bucket_creation", "allow_bucket_deletion", "allow_delayed_open")
_FLAGS = {"true": True, "1": True, "false": False, "0": False}

_T = TypeVar("_T")


class ObjectCold:
    """Objects under a prefix of a bucket."""

    def __init__(self, location: str) -> None:
        address = _Address(location)
        self.location = address.shown
        self._hide = address.hide
        self._is_closed = False
        self._fs, self._root = _connect(address)

    def put(self, name: str, source: File) -> None:
        size = source.size()
        given_up = threading.Event()

        def copy() -> None:
            path = self._path(name)
            temp = f"{path}.{secrets.token_hex(_RANDOM_BYTES)}{TEMP_SUFFIX}"
            opened = self._fs.open_output_stream(temp)
            try:
                with opened as stream:
                    for piece in pieces(source):
                        if given_up.is_set():
                            return
                        stream.write(piece)
                arrived = self._fs.get_file_info(temp).size
                if arrived != size:
                    raise OSError(f"{arrived} bytes arrived of {size}")
                if not given_up.is_set():
                    self._fs.copy_file(temp, path)
            finally:
                with contextlib.suppress(Exception):  # then it waits for `delete`
                    self._fs.delete_file(temp)

        try:
            self._call("put", name, copy, size)
        except BaseException:  # also Ctrl-C, which does not reach the copying thread
            given_up.set()
            raise

    def read(self, name: str, position: int, length: int) -> bytes:
        def fetch() -> bytes:
            with self._fs.open_input_file(self._path(name)) as file:
                size: int = file.size()
                if position + length > size:
                    raise short_error(name, self.location, position, length, size)
                data: bytes = file.read_at(length, position)
                if len(data) != length:
                    raise OSError(f"{len(data)} bytes arrived of {length}")
                return data

        return self._call("read", name, fetch, length)

    def size(self, name: str) -> int | None:
        def look() -> int | None:
            info = self._fs.get_file_info(self._path(name))
            return info.size if info.is_file else None

        return self._call("look for", name, look)

    def delete(self, name: str) -> None:
        def remove() -> None:
            ours = re.compile(rf"{re.escape(name)}\.[0-9a-f]+{re.escape(TEMP_SUFFIX)}")
            for each in (name, *filter(ours.fullmatch, self._search(name))):
                with contextlib.suppress(FileNotFoundError):
                    self._fs.delete_file(self._path(each))

        self._call("delete", name, remove)

    def names(self, prefix: str) -> list[str]:
        found = self._call("list", prefix, lambda: self._search(prefix), is_prefix=True)
        return listed(found, prefix)

    def close(self) -> None:
        self._is_closed = True

    def __repr__(self) -> str:
        return f"<ObjectCold {self.location!r}>"

    def _search(self, prefix: str) -> list[str]:
        from pyarrow.fs import FileSelector

        directory = "/".join([self._root, *prefix.split("/")[:-1]])
        selector = FileSelector(directory, allow_not_found=True, recursive=True)
        paths = (info.path for info in self._fs.get_file_info(selector) if info.is_file)
        names = (path.removeprefix(self._root + "/") for path in paths)
        return [name for name in names if name.startswith(prefix)]

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _call(
        self,
        what: str,
        name: str,
        call: Callable[[], _T],
        transfer_bytes: int = 0,
        *,
        is_prefix: bool = False,
    ) -> _T:
        """The call's result, within bounded time, with its errors turned into ours."""
        import pyarrow

        if not is_prefix:
            check_name(name)
        check_open(self.location, is_closed=self._is_closed)
        seconds = _CALL_SECONDS + transfer_bytes / _BYTES_PER_SECOND_MIN
        try:
            return _bounded(call, seconds)
        except StratalogError:
            raise
        except FileNotFoundError as error:
            if what == "read":
                raise missing_error(name, self.location) from None
            raise self._error(what, name, error) from None
        except (OSError, pyarrow.ArrowException) as error:
            raise self._error(what, name, error) from None

    def _error(self, what: str, name: str, error: Exception) -> ColdStoreError:
        # The original is not chained: it may quote the URL, password and all.
        return cold_error(what, name, self.location, self._hide(str(error)))


class _Address:
    """A URL in its parts, and how to show it to anybody."""

    def __init__(self, location: str) -> None:
        try:
            url = urlsplit(location)
        except ValueError as error:
            raise OptionError(f"the location of the cold store is not a URL: {error}") from None
        user, _, self.host = url.netloc.rpartition("@")
        self.scheme = url.scheme
        if not self.host or (self.scheme == "s3" and ":" in self.host):
            # A secret with a slash in it ends what looks like the host: nothing of it is shown.
            raise OptionError(
                f"the {self.scheme}:// URL of the cold store names no bucket: write "
                f"{self.scheme}://bucket/prefix, and slashes in credentials as %2F"
            )
        name, colon, password = user.partition(":")
        self.user, self.password = unquote(name), unquote(password)
        self.path = unquote(url.path).strip("/")
        # A plus is a plus here, as in pyarrow.
        self.options = dict(parse_qsl(url.query.replace("+", "%2B"), keep_blank_values=True))
        hidden = {name for name in self.options if any(part in name for part in _SECRETS)}
        self._hidden = {password, self.password, *(self.options[name] for name in hidden)} - {""}
        query = "&".join(
            f"{name}={'***' if name in hidden else quote(value, safe='/:')}"
            for name, value in self.options.items()
        )
        netloc = self.host if colon else url.netloc
        self.shown = urlunsplit((url.scheme, netloc, url.path, query, ""))
        self.uri = location

    def hide(self, text: str) -> str:
        """The text without what must not be shown."""
        text = text.replace(self.uri, self.shown)
        for secret in sorted(self._hidden, key=len, reverse=True):
            if len(secret) > 3:  # less is no secret, but a part of ordinary words
                text = text.replace(secret, "***")
        return text


def _connect(address: _Address) -> tuple[Any, str]:
    """A file system of pyarrow and the path in it; nothing is sent yet."""
    import pyarrow
    from pyarrow.fs import FileSystem

    try:
        if address.scheme == "s3":
            return _connect_s3(address), f"{address.host}/{address.path}".rstrip("/")
        uri = address.uri
        if "retry_limit_seconds" not in address.options:
            uri += ("&" if address.options else "?") + "retry_limit_seconds=3"
        fs, root = _bounded(lambda: FileSystem.from_uri(uri), _CALL_SECONDS)
        return fs, root.rstrip("/")
    except (OSError, TypeError, ValueError, NotImplementedError, pyarrow.ArrowException) as error:
        if isinstance(error, StratalogError):
            raise
        raise OptionError(
            f"the cold store's URL {address.shown} is refused: {address.hide(str(error))}. "
            "The options of such a URL are those of pyarrow.fs.FileSystem.from_uri"
        ) from None


def _connect_s3(address: _Address) -> Any:
    # Not from_uri: it takes no timeouts (a silent server held it for 99 s), and without a region
    # it asks the network for one.
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem

    values: dict[str, Any] = {}
    for name, value in address.options.items():
        if name in _S3_TEXTS:
            values[name] = value
        elif name in _S3_FLAGS and value.lower() in _FLAGS:
            values[name] = _FLAGS[value.lower()]
        else:
            known = ", ".join(sorted((*_S3_TEXTS, *_S3_FLAGS)))
            raise OptionError(
                f"the cold store's URL {address.shown} has an option {name!r} that is not known "
                f"or not true or false: an S3 URL takes {known}"
            )
    if address.password:
        values |= {"access_key": address.user, "secret_key": address.password}
    return S3FileSystem(
        connect_timeout=_CONNECT_SECONDS,
        request_timeout=_STALL_SECONDS,
        retry_strategy=AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
        **values,
    )


def _bounded(call: Callable[[], _T], seconds: float) -> _T:
    """What the call returns or raises, unless that takes too long."""
    outcome: queue.SimpleQueue[tuple[_T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            outcome.put((call(), None))
        except BaseException as error:
            outcome.put((None, error))

    # A daemon: a program that ends does not wait for a store that does not answer.
    threading.Thread(target=run, name="stratalog-cold", daemon=True).start()
    try:
        result, error = outcome.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer within {seconds:.0f} s") from None
    if error is not None:
        raise error
    return result  # type: ignore[return-value]
