"""Arrow data on its way into the log: cut into frames, checked, encoded by column."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from stratalog.arguments import rising
from stratalog.errors import OptionError, TooLargeError
from stratalog.format.arrow_input import ArrowColumns, split
from stratalog.log.commit_group import Entry, check_batch, records_entry
from stratalog.log.topic import TopicLog

# Size of the frames that a table is cut into: large enough to be read at full speed.
_FRAME_BYTES = 1 << 20


class ArrowAppend:
    """A table or batch to be appended; invalid data raises here."""

    def __init__(self, log: TopicLog, data: Any, time_ns: Callable[[], int]) -> None:
        self._log = log
        self._time_ns = time_ns
        frame_bytes = min(_FRAME_BYTES, log.batch_bytes_max // 2)
        self._batches = [ArrowColumns(batch) for batch in split(data, frame_bytes)]
        if not self._batches:
            raise OptionError("append_arrow needs at least one record")
        largest = max(int(batch.sizes().max()) for batch in self._batches)
        if largest > log.record_bytes_max:
            raise TooLargeError(
                f"a record of {largest} bytes is too large for topic {log.name!r}: "
                f"record_bytes_max is {log.record_bytes_max}; nothing was appended"
            )
        self._times = [batch.timestamps() for batch in self._batches]
        self.is_timed = any(times is not None for times in self._times)
        """Whether the records bring their own times."""

    def entries(self, floor: int) -> list[Entry]:
        """Encode the frames, with no time below `floor`."""
        entries = []
        now = self._time_ns()
        for batch, given in zip(self._batches, self._times, strict=True):
            stamps = None
            first = last = 0
            if self.is_timed:
                given = np.zeros(batch.count, np.int64) if given is None else given
                stamps = rising(given, now, floor)
                first, last = int(stamps[0]), int(stamps[-1])
                floor = last
            flags, body = batch.encode(stamps, batch.expires_at())
            check_batch(self._log, len(body))
            entries.append(records_entry(self._log, flags, body, batch.count, 0, first, last))
        return entries
