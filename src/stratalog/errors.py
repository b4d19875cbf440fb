"""Every error a user can meet, in one tree.

::

    StratalogError
    ├── UsageError                 the call was wrong; nothing was changed
    │   ├── OptionError            a bad value or an unknown option      (also a ValueError)
    │   │   └── BadLineError       a line that is no line protocol; has its `line` and `column`
    │   ├── WrongTypeError         a value of the wrong Python type      (also a TypeError)
    │   ├── InvalidValueError      a value that is not of its topic's type (also a ValueError)
    │   ├── SchemaMismatchError    a type that cannot read what a topic holds (also a TypeError)
    │   ├── TooLargeError          a record, batch or name over its limit (also a ValueError)
    │   ├── UnknownTopicError      no topic of that name                 (also a LookupError)
    │   ├── UnknownGroupError      no consumer group of that name        (also a LookupError)
    │   ├── UnknownRouteError      a route that was dropped              (also a LookupError)
    │   ├── UnknownScheduleError   a schedule that was dropped           (also a LookupError)
    │   ├── NoLakeError            a topic without files in a lake       (also a LookupError)
    │   ├── TopicExistsError       create_topic on a name that is taken
    │   ├── WrongKindError         a queue where a topic is, or the other way round
    │   ├── MissingPackageError    an optional package is not installed  (also an ImportError)
    │   ├── NotAStoreError         the directory is not a Stratalog store
    │   ├── DataLossError          records that were asked for are gone
    │   ├── VersionGoneError       a version that a table no longer has    (also a LookupError)
    │   └── OffsetOutOfRangeError  an offset that does not exist yet     (also an IndexError)
    ├── ConflictError              another holder has what you asked for
    │   ├── LeaseLostError         a delivery that no longer holds its message
    │   ├── VersionConflictError   a key that is not as a condition demands
    │   ├── FencedError            the directory is another one now; open the store again
    │   ├── LockedError            another writer has the directory open
    │   └── RejectedError          what was published cannot be adopted
    ├── StateError                 the object cannot do this any more
    │   ├── ClosedError            the store was closed
    │   ├── ReadOnlyError          a write to a read-only store
    │   ├── DamagedError           a write to a store whose log is damaged
    │   └── PoisonedError          a write or sync failed earlier; reopen the store
    ├── StorageError               the disk said no                      (also an OSError)
    │   ├── ColdStoreError         the cold store failed or is not there; try again later
    │   ├── DiskFullError          no space; free some and append again
    │   ├── SyncFailedError        a write or sync failed
    │   ├── FileMissingError       a file that should be there is not    (also a FileNotFoundError)
    │   ├── FileExistsAlreadyError a name that should be free is taken   (also a FileExistsError)
    │   ├── FileInTheWayError      a file where a directory should be    (also a NotADirectoryError)
    │   ├── DirectoryInTheWayError a directory where a file should be    (also an IsADirectoryError)
    │   └── AccessDeniedError      the system does not allow it          (also a PermissionError)
    ├── FormatError                bytes that are not what they should be
    │   ├── BadMagicError          not a file or frame of ours
    │   ├── UnsupportedVersionError  written by a newer Stratalog
    │   ├── UndecodableValueError  a stored value that its type cannot read (also a ValueError)
    │   └── CorruptionError        a checksum or a structure does not hold
    └── PressureError              busy; the same call may succeed later
        ├── QueueEmptyError        no message came in time               (also an Empty)
        ├── MemoryPressureError    no memory of the budget is left right now
        │   └── OutOfMemoryError   the system gives none                 (also a StorageError)
        └── TooManyFilesError      no more files can be opened           (also a StorageError)

Each message says what happened, where, and what to do about it. A `StorageError` that comes
straight from the file system also has the `errno`, `strerror` and `filename` of an `OSError`.
"""

from __future__ import annotations

import queue


class StratalogError(Exception):
    """Base of every error this package raises on purpose."""


class UsageError(StratalogError):
    """The call was wrong; nothing was changed."""


class OptionError(UsageError, ValueError):
    """An option or argument has a bad value, or is unknown."""


class BadLineError(OptionError):
    """A line of line protocol cannot be read; nothing of its batch was written.

    `line` and `column` count from 1; a column counts characters.
    """

    def __init__(self, message: str, line: int = 0, column: int = 0) -> None:
        super().__init__(message)
        self.line = line
        self.column = column


class WrongTypeError(UsageError, TypeError):
    """An argument has the wrong Python type."""


class InvalidValueError(UsageError, ValueError):
    """A value does not fit the type of its topic, queue or table; nothing was written.

    `field` is the part of it that does not, such as `lines[2].price`; empty for all of it.
    """

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class SchemaMismatchError(UsageError, TypeError):
    """A type cannot read every value that a topic may hold; nothing was changed.

    `stored` and `given` are the two schemas, as JSON Schema.
    """

    def __init__(self, message: str, stored: str = "", given: str = "") -> None:
        super().__init__(message)
        self.stored = stored
        self.given = given


class TooLargeError(UsageError, ValueError):
    """A record, a batch or a name is over its limit."""


class UnknownTopicError(UsageError, LookupError):
    """No topic of that name exists, and this call does not create one."""


class UnknownGroupError(UsageError, LookupError):
    """The topic has no consumer group of that name, and this call does not create one."""


class NoLakeError(UsageError, LookupError):
    """The lake has no file of the topic yet."""


class WrongKindError(UsageError):
    """The name belongs to another kind: a topic is no queue."""


class UnknownRouteError(UsageError, LookupError):
    """The route was dropped."""


class UnknownScheduleError(UsageError, LookupError):
    """There is no schedule of that name, or it was dropped."""


class TopicExistsError(UsageError):
    """A topic of that name exists already."""


class MissingPackageError(UsageError, ImportError):
    """A call needs a package that is not installed: the message has the line that installs it."""


class NotAStoreError(UsageError):
    """The directory does not hold a Stratalog store."""


class DataLossError(UsageError):
    """Records that were asked for went by themselves, and the caller wants to be told."""


class VersionGoneError(UsageError, LookupError):
    """A table no longer knows what was at a version, or what changed since.

    `horizon` is the first version that it can answer for.
    """

    def __init__(self, message: str, horizon: int = 0) -> None:
        super().__init__(message)
        self.horizon = horizon


class OffsetOutOfRangeError(UsageError, IndexError):
    """An offset outside of what the topic can answer for."""


class ConflictError(StratalogError):
    """Another process, consumer or caller holds what was asked for."""


class LeaseLostError(ConflictError):
    """A delivery does not hold its message: it was delivered again, or by another queue."""


class VersionConflictError(ConflictError):
    """A key of a table is not as `if_version` or `if_absent` demands; nothing was written.

    `version` is the key's version, None if it is not there.
    """

    def __init__(self, message: str, version: int | None = None) -> None:
        super().__init__(message)
        self.version = version


class LockedError(ConflictError):
    """Another writer has this directory open."""


class FencedError(ConflictError):
    """The directory was removed, renamed or replaced while this store had it open."""


class RejectedError(ConflictError):
    """A batch that was published does not fit what the store holds, or is damaged."""


class StateError(StratalogError):
    """The object is in a state that does not allow the call."""


class ClosedError(StateError):
    """The store was closed."""


class ReadOnlyError(StateError):
    """A write was tried on a store that was opened read-only."""


class DamagedError(StateError):
    """A write was tried on a store that opened read-only because it is damaged."""


class PoisonedError(StateError):
    """A write or sync failed earlier; nothing more is accepted until the store is reopened."""


class StorageError(StratalogError, OSError):
    """The disk, or the file system on it, failed."""

    # OSError formats its own two arguments; ours is one finished sentence.
    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class ColdStoreError(StorageError):
    """The cold store failed, cannot be reached, or lacks an object; the hot part works on."""


class DiskFullError(StorageError):
    """There is no space left; nothing of the failed call was kept."""


class SyncFailedError(StorageError):
    """A write or sync failed; what it covered was not acknowledged."""


class FileMissingError(StorageError, FileNotFoundError):
    """A file or directory is not where it should be."""


class FileExistsAlreadyError(StorageError, FileExistsError):
    """A file that is to be made is there already."""


class FileInTheWayError(StorageError, NotADirectoryError):
    """There is a file where a directory should be."""


class DirectoryInTheWayError(StorageError, IsADirectoryError):
    """There is a directory where a file should be."""


class AccessDeniedError(StorageError, PermissionError):
    """The operating system does not allow this user to do that."""


class FormatError(StratalogError):
    """Bytes are not what they should be."""


class BadMagicError(FormatError):
    """These bytes do not start as a file or frame of ours does."""


class UnsupportedVersionError(FormatError):
    """The format version is newer than this release knows."""


class UndecodableValueError(FormatError, ValueError):
    """A stored value is not of the type that it is read with; its bytes can still be read.

    `topic`, `offset` and `field` say which value, and which part of it.
    """

    def __init__(self, message: str, topic: str = "", offset: int = -1, field: str = "") -> None:
        super().__init__(message)
        self.topic = topic
        self.offset = offset
        self.field = field


class CorruptionError(FormatError):
    """A checksum, a length or a cross-reference does not hold."""


class PressureError(StratalogError):
    """Too busy right now; the same call may succeed later."""


class QueueEmptyError(PressureError, queue.Empty):
    """No message could be got in the time that was given."""


class MemoryPressureError(PressureError):
    """The memory budget is used up; try again when others have let go of some."""


class TooManyFilesError(PressureError, StorageError):
    """No more files can be opened right now; nothing was changed, the call may be repeated."""


class OutOfMemoryError(MemoryPressureError, StorageError):
    """The operating system gives no more memory; nothing was changed, the call may be repeated."""
