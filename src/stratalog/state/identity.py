"""The store file, which makes a directory a store: reading and creating it."""

from __future__ import annotations

import os
import secrets

from stratalog.errors import FormatError, NotAStoreError
from stratalog.format.names import store_path, store_temp_path
from stratalog.format.store import VERSION, StoreFile, decode_store, encode_store
from stratalog.fs import FileSystem
from stratalog.fs.os_errors import reason


def read_store_file(fs: FileSystem, root: str) -> StoreFile:
    """Read the identity of the store in a directory; raises `NotAStoreError` if there is none."""
    path = store_path(root)
    try:
        file = fs.open(path, "read")
    except (FileNotFoundError, NotADirectoryError):
        raise NotAStoreError(
            f"{root} is not a Stratalog store: there is no file {path}. Check the path; a writer "
            "creates the store with stratalog.open(path)."
        ) from None
    try:
        return decode_store(file.pread(file.size(), 0))
    except FormatError as error:
        raise type(error)(f"{path}: {error}") from error
    finally:
        file.close()


def make_directory(fs: FileSystem, root: str) -> None:
    """Create the directory of a store, if there is none."""
    try:
        fs.makedirs(root)
    except (FileExistsError, NotADirectoryError) as error:
        raise NotAStoreError(
            f"{root} cannot be a store, which is a directory: {reason(error)}"
        ) from error


def check_free(fs: FileSystem, root: str) -> bool:
    """Return whether a directory is a store; raises if it is none and not empty."""
    names = fs.listdir(root)
    if os.path.basename(store_path(root)) in names:
        return True
    temp = os.path.basename(store_temp_path(root))
    others = [name for name in names if name not in (temp, "lock")]
    if others:
        raise NotAStoreError(
            f"{root} is not a Stratalog store and not empty (it holds {others[0]!r}): "
            "give the path of a store, or of a new or empty directory"
        )
    return False


def read_or_create(fs: FileSystem, root: str, now: int) -> StoreFile:
    """Read the identity of the store in this directory; an empty directory becomes a store."""
    if check_free(fs, root):
        return read_store_file(fs, root)
    temp = store_temp_path(root)
    store_file = StoreFile(secrets.token_bytes(16), now, VERSION)
    fs.unlink(temp)
    file = fs.open(temp, "create")
    try:
        file.pwrite([encode_store(store_file)], 0)
        file.fdatasync()
    finally:
        file.close()
    fs.rename(temp, store_path(root))
    fs.sync_dir(root)
    return store_file
