"""The claim file: read, created, and replaced after the directory was copied."""

from __future__ import annotations

import logging
import secrets

from stratalog.errors import FormatError
from stratalog.format.claim import INCARNATION_BYTES, ClaimFile, decode_claim, encode_claim
from stratalog.format.names import claim_path, claim_temp_path, cold_directory
from stratalog.fs import FileSystem

logger = logging.getLogger("stratalog.cold")


class Claim:
    """The directory of a cold store that belongs to this store directory.

    Concurrency: the store's upkeep, with its lock held.
    """

    def __init__(self, fs: FileSystem, root: str, identity: bytes) -> None:
        self._fs = fs
        self._root = root
        self._identity = identity
        self._directory: str | None = None
        self._is_read = False

    def find(self) -> str | None:
        """Return the directory there whose objects are ours; None if there is none yet."""
        if not self._is_read:
            self._directory = self._read()
            self._is_read = True
        return self._directory

    def make(self) -> str:
        """Return the directory there to put objects into, created if there is none."""
        return self.find() or self.renew()

    def renew(self) -> str:
        """Begin a new directory there; objects of the old one are no longer ours to delete."""
        incarnation = secrets.token_bytes(INCARNATION_BYTES)
        temp = claim_temp_path(self._root)
        self._fs.unlink(temp)
        file = self._fs.open(temp, "create")
        try:
            file.pwrite([encode_claim(ClaimFile(self._identity, incarnation, file.inode()))], 0)
            file.fdatasync()
        finally:
            file.close()
        self._fs.rename(temp, claim_path(self._root))
        self._fs.sync_dir(self._root)
        self._directory, self._is_read = cold_directory(self._identity, incarnation), True
        return self._directory

    def _read(self) -> str | None:
        path = claim_path(self._root)
        try:
            file = self._fs.open(path, "read")
        except FileNotFoundError:
            return None
        try:
            claim, inode = decode_claim(file.pread(file.size(), 0)), file.inode()
        except FormatError as error:
            # This loses only the right to delete objects that were moved before.
            logger.warning(
                "%s: %s; another one is made",
                path,
                error,
                extra={"file": path, "error": str(error)},
            )
            return None
        finally:
            file.close()
        if (claim.identity, claim.inode) != (self._identity, inode):
            return None  # the directory or this file is a copy: its claim belongs to the original
        return cold_directory(claim.identity, claim.incarnation)
