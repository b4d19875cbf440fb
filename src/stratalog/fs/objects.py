"""A cold store in an object store: S3, Google Cloud Storage or Azure, through `obstore`.

| URL | options of its own |
|---|---|
| `s3://bucket/prefix`, `s3a` | `region`, `virtual_hosted_style_request` |
| `gs://bucket/prefix`, `gcs` | `service_account`: a file |
| `az://container/prefix`, `azure`, `adl` | `account_name`, `use_azure_cli`, `use_emulator` |
| `abfss://container@account.dfs.core.windows.net/prefix`, `abfs` | the same |

All take `endpoint=http://host:port`, which may also be `endpoint_override=host:port&scheme=http`;
`allow_http=true`, for an endpoint of the environment that is not https; and `skip_signature=true`,
for a public store. Credentials are found where obstore looks for them: the environment variables
of each provider, then the machine's own identity. S3 takes them in the URL too, as
`s3://key:secret@bucket`; they are never shown.

An upload becomes visible when it is complete; one that fails is aborted. A process that dies during
one leaves parts that show up nowhere but on the bill: let the bucket drop incomplete uploads after
a day.

Concurrency: as for every cold store. A process that was forked after the first call cannot use
object stores: it lacks the client's threads, and would wait for them for ever.

Why this library, and what was measured: docs/decisions/0006-cold-store.md.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit, urlunsplit

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    GenericError,
    NotSupportedError,
    PermissionDeniedError,
)
from obstore.store import from_url

from stratalog.errors import OptionError, StratalogError
from stratalog.fs.cold import (
    OBJECT_SCHEMES,
    Source,
    check_name,
    check_open,
    cold_error,
    listed,
    missing_error,
    pieces,
    short_error,
)

# A retry begins within the first 3 s, so an unreachable store takes 6 s at the worst.
_CONNECT_SECONDS = 2.0
_STALL_SECONDS = 3.0
_RETRY_SECONDS = 3.0
_RETRIES = 2

# A part is the smallest that S3 takes. Two at a time in a minute is 1.4 Mbit/s, a slow line.
_PART_BYTES = 5 << 20
_PARTS_AT_ONCE = 2
_REQUEST_SECONDS = 60.0

# The options of obstore that say where a store is; an option of its client would make it panic.
_OPTIONS = {
    "s3": ("region", "virtual_hosted_style_request"),
    "gs": ("service_account",),
    "az": ("account_name", "use_azure_cli", "use_emulator"),
}
_OPTIONS_OF_ALL = ("allow_http", "endpoint", "endpoint_override", "scheme", "skip_signature")

# The process that has the client's threads, after the first call.
_owner_pid: int | None = None

_BUCKET_MISSING = re.compile("NoSuchBucket|ContainerNotFound")
_MESSAGE = re.compile(r"<Message>(.*?)</Message>", re.DOTALL)
_CAUSE = re.compile(r'kind: Timeout|(?:error|message): "?([^"(\n]+)')


class Bucket:
    """A prefix of a bucket: the client, with its errors in our words."""

    def __init__(self, location: str) -> None:
        self.location, self._secret, self._url, self._config = _parse(location)
        self._store = self._client(_STALL_SECONDS)

    def _client(self, stall_seconds: float) -> Any:
        try:
            return _connect(self._url, self._config, stall_seconds=stall_seconds)
        except (BaseError, ValueError) as error:
            raise OptionError(
                f"the URL {self.location} is refused: {self._why(error)}. See "
                "stratalog.fs.objects for what it may hold"
            ) from None

    def _failed(self, what: str, name: str, why: str) -> StratalogError:
        """Build the error for an operation that failed."""
        raise NotImplementedError

    def _missing(self, name: str) -> Exception:
        """Build the error for an object that is to be read and is not there."""
        raise NotImplementedError

    @contextlib.contextmanager
    def _attempt(self, what: str, name: str) -> Iterator[None]:
        """Turn the client's errors into ours."""
        if not _is_owner():
            why = "this process was forked from one that used object stores: spawn it instead"
            raise self._failed(what, name, why)
        try:
            yield
        except StratalogError:
            raise
        except (BaseError, OSError, ValueError) as error:
            is_missing = isinstance(error, FileNotFoundError)
            if what == "read" and is_missing and not _BUCKET_MISSING.search(str(error)):
                raise self._missing(name) from None
            # Not chained: the original is long and not meant to be shown.
            raise self._failed(what, name, self._why(error)) from None

    def _why(self, error: Exception) -> str:
        """Give the reason, then the client's words without their markup and debugging tail."""
        text, _, debug = str(error).partition("\n\nDebug source:")
        text, _, body = text.partition("<")
        text = text.strip().removesuffix(":")
        found = _MESSAGE.search(body) or ("HTTP error" in text and _CAUSE.search(debug)) or None
        if found is not None:
            text = f"{found[1] or 'no answer in time'}: {text}"
        # Three letters are no secret, but a part of ordinary words.
        return text.replace(self._secret, "***") if len(self._secret) > 3 else text


class ObjectCold(Bucket):
    """Objects under a prefix of a bucket."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self._is_closed = False
        # The wait for an upload's answer includes sending it, which is no stall.
        self._uploads = self._client(_REQUEST_SECONDS)

    def put(self, name: str, source: Source) -> bool:
        with self._attempt("put", name):
            # Uploads may take long: ask first whether the store answers and already has the object.
            with contextlib.suppress(FileNotFoundError, PermissionDeniedError):
                obstore.head(self._store, name)
                return False
            if source.size() <= _PART_BYTES:
                return self._put_small(name, b"".join(pieces(source)))
            # Uploads in parts cannot be conditional. The name identifies the content, so an object
            # that appeared meanwhile is replaced by the same bytes.
            obstore.put(
                self._uploads,
                name,
                pieces(source),
                chunk_size=_PART_BYTES,
                max_concurrency=_PARTS_AT_ONCE,
            )
            return True

    def _put_small(self, name: str, data: bytes) -> bool:
        try:
            obstore.put(self._uploads, name, data, mode="create")
        except AlreadyExistsError:
            return False
        except NotSupportedError:  # such as an upload in parts
            obstore.put(self._uploads, name, data, use_multipart=False)
        return True

    def read(self, name: str, position: int, length: int) -> bytes:
        with self._attempt("read", name):
            data = b""
            try:
                if length:
                    data = bytes(
                        obstore.get_range(self._store, name, start=position, length=length)
                    )
            except GenericError as error:
                if "status code: 416" not in str(error):  # the range begins at or after the end
                    raise
            if length and len(data) == length:
                return data
            size = obstore.head(self._store, name)["size"]
            if position + length > size:
                raise short_error(name, self.location, position, length, size)
            if len(data) != length:
                raise OSError(f"{len(data)} bytes arrived of {length}")
            return data

    def size(self, name: str) -> int | None:
        with self._attempt("look for", name):
            try:
                return obstore.head(self._store, name)["size"]
            except FileNotFoundError:
                return None

    def delete(self, name: str) -> None:
        with self._attempt("delete", name):
            try:
                obstore.delete(self._store, name)
            except FileNotFoundError as error:
                if _BUCKET_MISSING.search(str(error)):
                    raise

    def names(self, prefix: str) -> list[str]:
        with self._attempt("list", prefix, is_prefix=True):
            # obstore's prefixes are whole directories.
            batches = obstore.list(self._store, prefix.rpartition("/")[0] or None)
            return listed([found["path"] for batch in batches for found in batch], prefix)

    def close(self) -> None:
        self._is_closed = True

    def __repr__(self) -> str:
        return f"<ObjectCold {self.location!r}>"

    @contextlib.contextmanager
    def _attempt(self, what: str, name: str, *, is_prefix: bool = False) -> Iterator[None]:
        if not is_prefix:
            check_name(name)
        check_open(self.location, is_closed=self._is_closed)
        with super()._attempt(what, name):
            yield

    def _failed(self, what: str, name: str, why: str) -> StratalogError:
        return cold_error(what, name, self.location, why)

    def _missing(self, name: str) -> Exception:
        return missing_error(name, self.location)


def _is_owner() -> bool:
    """Whether this process has the client's threads, or is the first to need them."""
    global _owner_pid
    if _owner_pid is None:
        _owner_pid = os.getpid()
    return _owner_pid == os.getpid()


def _parse(location: str) -> tuple[str, str, str, dict[str, str]]:
    """Split a URL into what may be shown of it, its secret, and the URL and options for obstore."""
    try:
        url = urlsplit(location)
    except ValueError as error:
        raise OptionError(f"the location of the cold store is not a URL: {error}") from None
    kind = OBJECT_SCHEMES[url.scheme]
    user, _, bucket = url.netloc.rpartition("@")
    key, _, secret = map(unquote, user.partition(":"))
    if not bucket or ":" in bucket:
        # A secret with a slash in it ends the part that looks like the bucket: show nothing of it.
        raise OptionError(
            f"the {url.scheme}:// URL of the cold store names no bucket: write "
            f"{url.scheme}://bucket/prefix, and slashes in credentials as %2F"
        )
    if (secret and kind != "s3") or (user and not secret and kind != "az"):
        raise OptionError(
            f"the {url.scheme}:// URL of the cold store has something before the @: only s3:// "
            "takes key:secret there; others find credentials in the environment"
        )
    # A plus sign stands for itself here.
    options = dict(parse_qsl(url.query.replace("+", "%2B"), keep_blank_values=True))
    config = _config(kind, dict(options))
    netloc = url.netloc
    if kind == "s3":
        netloc = bucket
        config["disable_bulk_delete"] = "true"  # not every server that speaks S3 has it
        if secret:
            config |= {"access_key_id": key, "secret_access_key": secret}
    query = "&".join(f"{name}={quote(value, safe='/:')}" for name, value in options.items())
    shown = urlunsplit((url.scheme, netloc, url.path, query, ""))
    # obstore knows one of Google's two names.
    scheme = "gs" if kind == "gs" else url.scheme
    return shown, secret, urlunsplit((scheme, netloc, url.path.rstrip("/"), "", "")), config


def _config(kind: str, options: dict[str, str]) -> dict[str, str]:
    """Return the options of a URL by obstore's names; `allow_http` is its client's."""
    known = sorted((*_OPTIONS[kind], *_OPTIONS_OF_ALL))
    for name in options:
        if name not in known:  # its value is not shown: it may be a password
            raise OptionError(
                f"the cold store's URL has an option {name!r} that is not known: {kind}:// takes "
                f"{', '.join(known)}; credentials come from the environment"
            )
    scheme = options.pop("scheme", "https")
    endpoint = options.pop("endpoint_override", "") or options.pop("endpoint", "")
    if "@" in endpoint:
        raise OptionError("the endpoint of the cold store's URL holds an @: write http://host:port")
    if endpoint:
        endpoint = endpoint if "://" in endpoint else f"{scheme}://{endpoint}"
        options["base_url" if kind == "gs" else "endpoint"] = endpoint
        if endpoint.startswith("http://"):
            options["allow_http"] = "true"
    return options


def _connect(url: str, config: dict[str, str], *, stall_seconds: float) -> Any:
    """Make a client whose every request takes bounded time; nothing is sent yet."""
    place: Any = {name: value for name, value in config.items() if name != "allow_http"}
    client: Any = {name: value for name, value in config.items() if name == "allow_http"}
    client["connect_timeout"] = timedelta(seconds=_CONNECT_SECONDS)
    client["read_timeout"] = timedelta(seconds=stall_seconds)
    client["timeout"] = timedelta(seconds=_REQUEST_SECONDS)
    patience: Any = {
        "max_retries": _RETRIES,
        "retry_timeout": timedelta(seconds=_RETRY_SECONDS),
        "backoff": {"max_backoff": timedelta(seconds=1)},
    }
    return from_url(url, config=place, client_options=client, retry_config=patience)
