"""The location of a store: a path, a `file://` URL, or the URL of an object store."""

from __future__ import annotations

import os
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from stratalog.errors import OptionError
from stratalog.fs import FileSystem, PosixFileSystem
from stratalog.fs.cold import OBJECT_SCHEMES


class Place(NamedTuple):
    """A store's file system and its root there."""

    fs: FileSystem
    root: str


def is_remote(path: str) -> bool:
    """Return whether a path is the URL of an object store."""
    scheme, separator, _ = path.partition("://")
    return bool(separator) and scheme.lower() in OBJECT_SCHEMES


def absolute(path: str) -> str:
    """Make a path absolute, so that it is valid from any working directory."""
    scheme, separator, _ = path.partition("://")
    if is_remote(path):
        return path
    if not separator:
        return os.path.abspath(path.removeprefix("file:"))
    if scheme.lower() != "file":
        raise OptionError(
            f"no store can be read at {scheme}:// URLs: give a directory, file://, or one of "
            "s3://, gs://, az://"
        )
    url = urlsplit(path)
    if url.netloc not in ("", "localhost") or not url.path:
        raise OptionError(f"{path} names no directory here: write file:///path/to/it")
    return os.path.abspath(unquote(url.path))


def find(path: str) -> Place:
    """Resolve an absolute path to a file system; accesses nothing yet."""
    if not is_remote(path):
        return Place(PosixFileSystem(), path)
    try:
        from stratalog.fs.bucket import BucketFileSystem  # imported only where it is needed
    except ModuleNotFoundError as error:
        raise OptionError(
            f"a store at {path.partition(':')[0]}:// needs obstore: pip install 'stratalog[cold]'"
        ) from error
    fs = BucketFileSystem(path)
    return Place(fs, fs.root)
