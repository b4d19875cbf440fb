"""The cold store: the place for old sealed segments.

A cold store holds named, immutable objects. It is slow and sometimes unavailable: every failure is
a `ColdStoreError` that arrives within seconds, and the caller goes on without it.

Names are `directory/file`; `stratalog.format.names` chooses them so that stores sharing one place
keep apart, and no two different segments have the same name. A name ending in `.tmp` belongs to an
upload in progress or to what a crash left of one: it is never listed, and `delete` of the name
removes it, too.

Contract, for every implementation:
- An object is there as a whole or not at all, and durable once `put` returned. It never changes:
  `put` leaves an existing object as it is.
- After an error of `put` or `delete` it is unknown whether the call took effect, or still will:
  repeat it.
- An error of the file that is being copied is a `StorageError`, but not a `ColdStoreError`.
- `size` returns None also for an object whose store was lost or whose disk is not mounted: that is
  no proof that an object was deleted.

Concurrency: any thread may call anything; one thread at a time puts or deletes a given name.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from typing import Protocol
from urllib.parse import unquote, urlsplit

from stratalog.errors import ClosedError, ColdStoreError, OptionError, StorageError
from stratalog.fs import FileSystem
from stratalog.fs.os_errors import is_of_system, reason

TEMP_SUFFIX = ".tmp"

# The schemes a URL may have, and the kind of object store that each means.
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

_NAME = re.compile(r"\w[\w.-]*/\.?\w[\w.-]*", re.ASCII)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_WHY_CHARACTERS_MAX = 300
_NO_LINKS = {errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}


class Source(Protocol):
    """A file that is copied to a cold store."""

    path: str

    def pread(self, length: int, position: int) -> bytes:
        """Up to `length` bytes at `position`; fewer only where the file ends."""

    def size(self) -> int:
        """Length of the file in bytes."""


class ColdStore(Protocol):
    """Named immutable objects, written once, read in ranges; slow, and sometimes not there."""

    location: str
    """The location that the user gave, without credentials."""

    def put(self, name: str, source: Source) -> bool:
        """Copy the whole of `source`; False if there is an object of that name, which stays."""

    def read(self, name: str, position: int, length: int) -> bytes:
        """Return exactly `length` bytes from `position` on, or raise."""

    def size(self, name: str) -> int | None:
        """Length of an object in bytes; None when there is no such object."""

    def delete(self, name: str) -> None:
        """Remove an object; fine when it is gone already."""

    def names(self, prefix: str) -> list[str]:
        """Names that start with `prefix`, such as `directory/` or `directory/00`, sorted."""

    def close(self) -> None:
        """Close the store; closing twice is fine."""


def open_cold(location: str, fs: FileSystem) -> ColdStore:
    """Open the cold store at a path, `file://` URL or object store URL, without contacting it yet.

    A directory is made by the first `put`; a bucket must be there.
    """
    if not location.strip():
        raise OptionError(
            "the location of the cold store is empty: give a directory, or a URL such as "
            "s3://bucket/prefix"
        )
    path = _directory(location)
    if path is not None:
        return DirectoryCold(fs, path)
    scheme = location.partition(":")[0].lower()
    if scheme in OBJECT_SCHEMES:
        try:
            from stratalog.fs.objects import ObjectCold  # few users have an object store
        except ModuleNotFoundError as error:
            raise OptionError(
                f"a cold store at {scheme}:// needs obstore: pip install 'stratalog[cold]'"
            ) from error
        return ObjectCold(location)
    # The rest of the URL is not shown: it may hold a password.
    raise OptionError(
        f"no cold store is known for {scheme}:// URLs: use a directory, file://, or one of "
        f"{', '.join(f'{known}://' for known in ('s3', 'gs', 'az'))}"
    )


def open_known(location: str, given: str | None, fs: FileSystem) -> ColdStore:
    """Open the store at a location that the log knows, which is without credentials.

    If the caller was `given` the same place, with credentials perhaps, it is opened by that.
    """
    if given is not None:
        place = open_cold(given, fs)
        if place.location == location:
            return place
        place.close()
    return open_cold(location, fs)


def _directory(location: str) -> str | None:
    """Return the directory that a location names; None for the URL of another kind of store."""
    found = _SCHEME.match(location)
    if found is None:
        scheme = location.partition(":")[0].lower()
        if scheme in (*OBJECT_SCHEMES, "file") and ":" in location:
            raise OptionError(
                f"a cold store's URL starts with {scheme}://, this one with {scheme}: alone"
            )
        return location
    if found[1].lower() != "file":
        return None
    url = urlsplit(location)
    if url.netloc not in ("", "localhost") or not url.path:
        raise OptionError(f"{location} names no directory here: write file:///path/to/it")
    return unquote(url.path)


class DirectoryCold:
    """A directory, on a slower or larger disk than the hot one.

    Crash: `put` leaves the object or none, and maybe a temporary file.
    """

    def __init__(self, fs: FileSystem, path: str) -> None:
        self.location = os.path.abspath(path)
        self._fs = fs
        self._is_closed = False
        try:
            fs.listdir(self.location)
        except NotADirectoryError as error:
            raise OptionError(
                f"the cold store at {self.location} cannot be used, because there is a file of "
                "that name: give a directory, new or existing"
            ) from error
        except OSError:
            pass  # not there right now: the calls that need it will raise

    def put(self, name: str, source: Source) -> bool:
        with self._attempt("put", name) as path:
            directory, temp = os.path.dirname(path), path + TEMP_SUFFIX
            self._fs.makedirs(directory)
            self._fs.unlink(temp)
            if self._is_there(path):
                self._fs.sync_dir(directory)  # a crash may have undone the directory's name
                return False
            file = self._fs.open(temp, "create")
            try:
                position = 0
                for piece in pieces(source):
                    file.pwrite([piece], position)
                    position += len(piece)
                file.fdatasync()
                is_new = self._name(temp, path)
                self._fs.sync_dir(directory)
                self._fs.promise(file, position)
                return is_new
            except Exception:
                with contextlib.suppress(OSError):  # half a segment is of no use on a full disk
                    self._fs.unlink(temp)
                raise
            finally:
                file.close()

    def _name(self, temp: str, path: str) -> bool:
        """Give a file its name, unless it is taken meanwhile; returns whether it was free."""
        is_new = True
        try:
            self._fs.link(temp, path)
        except FileExistsError:
            is_new = False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # No other process puts objects under this name, and this one does not do so twice.
            self._fs.rename(temp, path)
        self._fs.unlink(temp)
        return is_new

    def _is_there(self, path: str) -> bool:
        try:
            self._fs.open(path, "read").close()
        except FileNotFoundError:
            return False
        return True

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
                with contextlib.suppress(NotADirectoryError):  # a stray file is not ours
                    names = self._fs.listdir(os.path.join(self.location, inner))
                    found += (f"{inner}/{name}" for name in names)
            return listed(found, prefix)

    def close(self) -> None:
        self._is_closed = True

    def __repr__(self) -> str:
        return f"<DirectoryCold {self.location!r}>"

    @contextlib.contextmanager
    def _attempt(self, what: str, name: str, *, is_prefix: bool = False) -> Iterator[str]:
        """Yield the path of an object, and turn the disk's errors into ours."""
        if not is_prefix:
            check_name(name)
        check_open(self.location, is_closed=self._is_closed)
        try:
            yield os.path.join(self.location, name)
        except OSError as error:
            if not is_of_system(error):
                raise  # already in our own words
            if what == "read" and isinstance(error, FileNotFoundError):
                raise missing_error(name, self.location) from error
            raise cold_error(what, name, self.location, reason(error)) from error


def check_apart(option: str, location: str, root: str) -> None:
    """Refuse a cold store or a lake inside the store's own directory, or around it.

    Compares files, not paths: a link or a second mount may lead to the same place.
    """
    path = _directory(location)
    if path is None:
        return
    inner, outer = os.path.realpath(path), os.path.realpath(root)
    if _is_inside(inner, outer) or _is_inside(outer, inner):
        raise OptionError(
            f"{option}={location!r} and the store {root} overlap: one is inside the other. Give it "
            "a directory outside the store's. What was put there before is still read, without "
            f"{option}=...."
        )


def _is_inside(path: str, directory: str) -> bool:
    """Whether a path is a directory or lies inside it."""
    while True:
        if path == directory:
            return True
        with contextlib.suppress(OSError):  # a path that does not exist is not the same
            if os.path.samefile(path, directory):
                return True
        parent = os.path.dirname(path)
        if parent == path:
            return False
        path = parent


def pieces(source: Source) -> Iterator[bytes]:
    """Yield a file in pieces of about a mebibyte; its own errors are not the cold store's."""
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
    except OSError as error:
        if not is_of_system(error):
            raise
        raise StorageError(
            f"{source.path} cannot be read to copy it to the cold store: {reason(error)}. It stays "
            "where it is; check the disk"
        ) from error


def check_name(name: str) -> None:
    """Refuse a name that could leave the store or be mistaken for a temporary object."""
    if not _NAME.fullmatch(name) or name.endswith(TEMP_SUFFIX):
        raise OptionError(
            f"{name!r} cannot name an object of a cold store: names are directory/file"
        )


def check_open(location: str, *, is_closed: bool) -> None:
    """Raise when the store was closed."""
    if is_closed:
        raise ClosedError(f"the cold store {location} is closed: open it again to use it")


def listed(names: list[str], prefix: str) -> list[str]:
    """Pick the objects under a prefix from the names that were found, sorted."""
    return sorted(
        name
        for name in names
        if name.startswith(prefix) and _NAME.fullmatch(name) and not name.endswith(TEMP_SUFFIX)
    )


def cold_error(what: str, name: str, location: str, why: str) -> ColdStoreError:
    """Build the error that says what failed, why, and what to do."""
    why = " ".join(why.split()).rstrip(".")
    if len(why) > _WHY_CHARACTERS_MAX:
        why = why[:_WHY_CHARACTERS_MAX] + "..."
    return ColdStoreError(
        f"cannot {what} {name!r} in the cold store {location}: {why}. The hot part of the store "
        "works on; check the address, the credentials and the network, and try again"
    )


def missing_error(name: str, location: str) -> ColdStoreError:
    """Build the error for an object that should be there and is not."""
    return ColdStoreError(
        f"cannot read {name!r} in the cold store {location}: it is missing. The hot part of the "
        "store works on; check that this is the right place, that it is mounted, and that no "
        "other program deletes objects there"
    )


def short_error(name: str, location: str, position: int, length: int, size: int) -> ColdStoreError:
    """Build the error for a read past the end of an object."""
    return ColdStoreError(
        f"cannot read {length} bytes at {position} of {name!r} in the cold store {location}: it "
        f"has only {size}. The hot part of the store works on; check what else writes there"
    )
