"""The store file: what makes a directory a store, read and made."""

from __future__ import annotations

import os
import secrets

from stratalog.errors import FormatError, NotAStoreError
from stratalog.format.names import store_path, store_temp_path
from stratalog.format.store import StoreFile, decode_store, encode_store
from stratalog.fs import FileSystem


def read_store_file(fs: FileSystem, root: str) -> StoreFile:
    """Who the store in this directory is; raises `NotAStoreError` if there is none."""
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
    """Make the directory of a store, if there is none."""
    try:
        fs.makedirs(root)
    except (FileExistsError, NotADirectoryError) as error:
        raise NotAStoreError(f"{root} cannot be a store, which is a directory: {error}") from error


def read_or_create(fs: FileSystem, root: str, now: int) -> StoreFile:
    """Who the store in this directory is; an empty directory becomes one."""
    names = fs.listdir(root)
    if os.path.basename(store_path(root)) in names:
        return read_store_file(fs, root)
    temp = store_temp_path(root)
    others = [name for name in names if name not in (os.path.basename(temp), "lock")]
    if others:
        raise NotAStoreError(
            f"{root} is not a Stratalog store and not empty (it holds {others[0]!r}): "
            "give the path of a store, or of a new or empty directory"
        )
    store_file = StoreFile(secrets.token_bytes(16), now)
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
