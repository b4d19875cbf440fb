"""Every error a user can meet, in one tree.

::

    StratalogError
    ├── UsageError                 the call was wrong; nothing was changed
    │   ├── OptionError            a bad value or an unknown option      (also a ValueError)
    │   ├── WrongTypeError         a value of the wrong Python type      (also a TypeError)
    │   ├── TooLargeError          a record, batch or name over its limit (also a ValueError)
    │   ├── UnknownTopicError      no topic of that name                 (also a LookupError)
    │   ├── UnknownGroupError      no consumer group of that name        (also a LookupError)
    │   ├── TopicExistsError       create_topic on a name that is taken
    │   ├── WrongKindError         a queue where a topic is, or the other way round
    │   ├── NotAStoreError         the directory is not a Stratalog store
    │   ├── DataLossError          records that were asked for are gone
    │   └── OffsetOutOfRangeError  an offset that does not exist yet     (also an IndexError)
    ├── ConflictError              someone else holds what you asked for
    │   ├── LeaseLostError         a message that is somebody else's by now
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
    │   └── SyncFailedError        a write or sync failed
    ├── FormatError                bytes that are not what they should be
    │   ├── BadMagicError          not a file or frame of ours
    │   ├── UnsupportedVersionError  written by a newer Stratalog
    │   └── CorruptionError        a checksum or a structure does not hold
    └── PressureError              busy; the same call may succeed later
        ├── QueueEmptyError        no message came in time               (also an Empty)
        └── MemoryPressureError    no memory of the budget is left right now

Each message says what happened, where, and what to do about it.
"""

from __future__ import annotations

import queue


class StratalogError(Exception):
    """Base of every error this package raises on purpose."""


class UsageError(StratalogError):
    """The call was wrong; nothing was changed."""


class OptionError(UsageError, ValueError):
    """An option or argument has a bad value, or is unknown."""


class WrongTypeError(UsageError, TypeError):
    """An argument has the wrong Python type."""


class TooLargeError(UsageError, ValueError):
    """A record, a batch or a name is over its limit."""


class UnknownTopicError(UsageError, LookupError):
    """No topic of that name exists, and this call does not create one."""


class UnknownGroupError(UsageError, LookupError):
    """The topic has no consumer group of that name, and this call does not create one."""


class WrongKindError(UsageError):
    """What has that name is of another kind: a topic is no queue."""


class TopicExistsError(UsageError):
    """A topic of that name exists already."""


class NotAStoreError(UsageError):
    """The directory does not hold a Stratalog store."""


class DataLossError(UsageError):
    """Records that were asked for went by themselves, and the caller wants to be told."""


class OffsetOutOfRangeError(UsageError, IndexError):
    """An offset outside of what the topic can answer for."""


class ConflictError(StratalogError):
    """Somebody else holds what was asked for."""


class LeaseLostError(ConflictError):
    """A message is no longer this consumer's: its lease ran out and somebody else has it."""


class LockedError(ConflictError):
    """Another writer has this directory open."""


class RejectedError(ConflictError):
    """A batch that was published does not fit what the store holds, or is damaged."""


class StateError(StratalogError):
    """The object is in a state that does not allow the call."""


class ClosedError(StateError):
    """The store was closed."""


class ReadOnlyError(StateError):
    """A write was tried on a store that was opened read-only."""


class DamagedError(StateError):
    """A write was tried on a store that opened read-only because its log is damaged."""


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


class FormatError(StratalogError):
    """Bytes are not what they should be."""


class BadMagicError(FormatError):
    """These bytes do not start as a file or frame of ours does."""


class UnsupportedVersionError(FormatError):
    """The format version is newer than this release knows."""


class CorruptionError(FormatError):
    """A checksum, a length or a cross-reference does not hold."""


class PressureError(StratalogError):
    """Too busy right now; the same call may succeed later."""


class QueueEmptyError(PressureError, queue.Empty):
    """No message could be got in the time that was given."""


class MemoryPressureError(PressureError):
    """The memory budget is used up; try again when others have let go of some."""
