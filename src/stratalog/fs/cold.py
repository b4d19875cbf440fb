"""The cold store: where sealed segments go when they are old.

A cold store holds named, immutable objects. It is slow, and sometimes it is not there: every
failure is a `ColdStoreError` that arrives within seconds, and the caller goes on without it.

Names are `directory/file`, such as `000000000000002a/00000000000000001000.seg`. What ends in `.tmp`
is an object on its way in, or what a crash left of one: it is never listed, and `delete` of the
name takes it along.

Contract, for every implementation:
- An object is there as a whole or not at all, and durable once `put` returned.
- After an error of `put` or `delete` nobody knows whether it was done, or still will be: do it
  again.
- An error of the file that is being copied is a `StorageError`, but not a `ColdStoreError`.
- `size` says None also of an object whose store was lost or whose disk is not mounted: it is no
  proof that an object was deleted.

Concurrency: any thread may call anything; one thread at a time puts or deletes a given name.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import Protocol
from urllib.parse import unquote, urlsplit

from stratalog.errors import ClosedError, ColdStoreError, OptionError, StorageError, StratalogError
from stratalog.fs import File, FileSystem

TEMP_SUFFIX = ".tmp"

# What a URL may start with, and the kind of object store that it means.
OBJECT_SCHEMES = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gs",
    "gcs": "gs",
    "az": "az",
    "azure": "az",
    "adl": "az",
    "abfs": "az",
    "abfss": "az",
}

# Large enough that the system calls do not count, small enough to hold in memory many times.
_PIECE_BYTES = 1 << 20

_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_WHY_CHARACTERS_MAX = 300


class ColdStore(Protocol):
    """Named immutable objects, written once, read in ranges; slow, and sometimes not there."""

    location: str
    """What the user gave, without credentials."""

    def put(self, name: str, source: File) -> None:
        """Copy the whole of `source`; an object of that name is replaced atomically."""

    def read(self, name: str, position: int, length: int) -> bytes:
        """Exactly `length` bytes from `position` on, or an error."""

    def size(self, name: str) -> int | None:
        """Length of an object in bytes; None when there is no such object."""

    def delete(self, name: str) -> None:
        """Remove an object; fine when it is gone already."""

    def names(self, prefix: str) -> list[str]:
        """Names that start with `prefix`, such as `000000000000002a/`, sorted."""

    def close(self) -> None:
        """Let the store go; closing twice is fine."""


def open_cold(location: str, fs: FileSystem) -> ColdStore:
    """The cold store at a path, a `file://` URL or an object store's URL; asks nothing of it yet.

    A directory is made by the first `put`; a bucket must be there.
    """
    if not location.strip():
        raise OptionError(
            "the location of the cold store is empty: give a directory, or a URL such as "
            "s3://bucket/prefix"
        )
    found = _SCHEME.match(location)
    if found is None:
        scheme = location.partition(":")[0].lower()
        if scheme in (*OBJECT_SCHEMES, "file") and ":" in location:
            raise OptionError(
                f"a cold store's URL starts with {scheme}://, this one with {scheme}: alone"
            )
        return DirectoryCold(fs, location)
    scheme = found[1].lower()
    if scheme == "file":
        url = urlsplit(location)
        if url.netloc not in ("", "localhost") or not url.path:
            raise OptionError(f"{location} names no directory here: write file:///path/to/it")
        return DirectoryCold(fs, unquote(url.path))
    if scheme in OBJECT_SCHEMES:
        try:
            from stratalog.fs.objects import ObjectCold  # for the few who have one
        except ModuleNotFoundError as error:
            raise OptionError(
                f"a cold store at {scheme}:// needs obstore: pip install 'stratalog[cold]'"
            ) from error
        return ObjectCold(location)
    # The rest of the URL stays untold: it may hold a password.
    raise OptionError(
        f"no cold store is known for {scheme}:// URLs: use a directory, file://, or one of "
        f"{', '.join(f'{known}://' for known in ('s3', 'gs', 'az'))}"
    )


class DirectoryCold:
    """A directory, on a slower or larger disk than the hot one.

    Crash: `put` leaves the old object, the new one or none, and maybe a temporary file.
    """

    def __init__(self, fs: FileSystem, path: str) -> None:
        self.location = os.path.abspath(path)
        self._fs = fs
        self._is_closed = False
        try:
            fs.listdir(self.location)
        except NotADirectoryError as error:
            raise OptionError(
                f"the cold store at {self.location} cannot be, because there is a file of that "
                "name: give a directory, new or not"
            ) from error
        except OSError:
            pass  # not there right now: whoever needs it will be told

    def put(self, name: str, source: File) -> None:
        with self._attempt("put", name) as path:
            directory, temp = os.path.dirname(path), path + TEMP_SUFFIX
            self._fs.makedirs(directory)
            self._fs.unlink(temp)
            file = self._fs.open(temp, "create")
            try:
                position = 0
                for piece in pieces(source):
                    file.pwrite([piece], position)
                    position += len(piece)
                file.fdatasync()
                self._fs.rename(temp, path)
                self._fs.sync_dir(directory)
                self._fs.promise(file, position)
            except Exception:
                with contextlib.suppress(OSError):  # half a segment helps nobody on a full disk
                    self._fs.unlink(temp)
                raise
            finally:
                file.close()

    def read(self, name: str, position: int, length: int) -> bytes:
        with self._attempt("read", name) as path:
            file = self._fs.open(path, "read")
            try:
                data = file.pread(length, position)
                if len(data) != length:
                    raise short_error(name, self.location, position, length, file.size())
                return data
            finally:
                file.close()

    def size(self, name: str) -> int | None:
        with self._attempt("look for", name) as path:
            try:
                file = self._fs.open(path, "read")
            except FileNotFoundError:
                return None
            try:
                return file.size()
            finally:
                file.close()

    def delete(self, name: str) -> None:
        with self._attempt("delete", name) as path:
            self._fs.unlink(path)
            self._fs.unlink(path + TEMP_SUFFIX)
            with contextlib.suppress(FileNotFoundError):  # the directory was never made
                self._fs.sync_dir(os.path.dirname(path))

    def names(self, prefix: str) -> list[str]:
        with self._attempt("list", prefix, is_prefix=True) as path:
            directory, slash, _ = prefix.partition("/")
            found: list[str] = []
            for inner in [directory] if slash else self._fs.listdir(os.path.dirname(path)):
                with contextlib.suppress(NotADirectoryError):  # a stray file is none of ours
                    names = self._fs.listdir(os.path.join(self.location, inner))
                    found += (f"{inner}/{name}" for name in names)
            return listed(found, prefix)

    def close(self) -> None:
        self._is_closed = True

    def __repr__(self) -> str:
        return f"<DirectoryCold {self.location!r}>"

    @contextlib.contextmanager
    def _attempt(self, what: str, name: str, *, is_prefix: bool = False) -> Iterator[str]:
        """The path of an object, with the disk's errors turned into ours."""
        if not is_prefix:
            check_name(name)
        check_open(self.location, is_closed=self._is_closed)
        try:
            yield os.path.join(self.location, name)
        except StratalogError:
            raise
        except FileNotFoundError as error:
            if what != "read":
                raise cold_error(what, name, self.location, str(error)) from error
            raise missing_error(name, self.location) from error
        except OSError as error:
            raise cold_error(what, name, self.location, str(error)) from error


def pieces(source: File) -> Iterator[bytes]:
    """The whole of a file, about a mebibyte at a time; its own errors are not the cold store's."""
    try:
        position, end = 0, source.size()
        while position < end:
            piece = source.pread(min(_PIECE_BYTES, end - position), position)
            if not piece:
                raise StorageError(
                    f"{source.path} ended at {position} instead of {end} while it was copied to "
                    "the cold store: it must not change"
                )
            yield piece
            position += len(piece)
    except StratalogError:
        raise
    except OSError as error:
        raise StorageError(
            f"{source.path} cannot be read to copy it to the cold store: {error}. It stays where "
            "it is; check the disk"
        ) from error


def check_name(name: str) -> None:
    """Refuse what could leave the store, or be mistaken for a temporary object."""
    if not _NAME.fullmatch(name) or name.endswith(TEMP_SUFFIX):
        raise OptionError(
            f"{name!r} cannot name an object of a cold store: names are directory/file"
        )


def check_open(location: str, *, is_closed: bool) -> None:
    """Raise when the store was closed."""
    if is_closed:
        raise ClosedError(f"the cold store {location} is closed: open it again to use it")


def listed(names: list[str], prefix: str) -> list[str]:
    """Of what was found, the objects under a prefix, sorted."""
    return sorted(
        name
        for name in names
        if name.startswith(prefix) and _NAME.fullmatch(name) and not name.endswith(TEMP_SUFFIX)
    )


def cold_error(what: str, name: str, location: str, why: str) -> ColdStoreError:
    """What failed and why, and what to do."""
    why = " ".join(why.split()).rstrip(".")
    if len(why) > _WHY_CHARACTERS_MAX:
        why = why[:_WHY_CHARACTERS_MAX] + "..."
    return ColdStoreError(
        f"cannot {what} {name!r} in the cold store {location}: {why}. The hot part of the store "
        "works on; check the address, the credentials and the network, and try again"
    )


def missing_error(name: str, location: str) -> ColdStoreError:
    """An object that should be there is not."""
    return ColdStoreError(
        f"cannot read {name!r} in the cold store {location}: it is missing. The hot part of the "
        "store works on; check that this is the right place, that it is mounted, and that nobody "
        "else deletes objects there"
    )


def short_error(name: str, location: str, position: int, length: int, size: int) -> ColdStoreError:
    """A read past the end of an object."""
    return ColdStoreError(
        f"cannot read {length} bytes at {position} of {name!r} in the cold store {location}: it "
        f"has only {size}. The hot part of the store works on; check who else writes there"
    )
