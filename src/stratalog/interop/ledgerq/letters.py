"""Dead letters and deduplication ids of LedgerQ, and their names here.

A dead letter has headers with the id of its message and the reason of its failure. LedgerQ and
Stratalog name them differently: an imported or exported letter has both, and its own headers.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator

import pyarrow as pa

from stratalog.format.arrow import HEADERS
from stratalog.handles.dead_letters import DELIVERY_COUNT, FAILED_AT, ORIGINAL_OFFSET, REASON
from stratalog.interop.codecs.text import nanoseconds, rfc3339
from stratalog.interop.ledgerq import format as ledgerq
from stratalog.interop.ledgerq.write import shift_of
from stratalog.interop.model import ForeignTopic

Headers = dict[str, bytes]

_DIGEST = re.compile(rb"[0-9a-f]{64}")


def digest_of(id: bytes) -> bytes:
    """Convert a deduplication id to LedgerQ's form; an imported one is a digest already."""
    return id if _DIGEST.fullmatch(id) else hashlib.sha256(id).hexdigest().encode()


def with_our_headers(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Add our headers to letters of LedgerQ."""
    return _with_headers(batch, _ours)


def with_their_headers(letters: ForeignTopic, queue: ForeignTopic) -> ForeignTopic:
    """Add LedgerQ's headers to letters of ours."""
    shift = shift_of(queue)
    batches = letters.batches

    def changed() -> Iterator[pa.RecordBatch]:
        for batch in batches():
            yield _with_headers(batch, lambda headers: _theirs(headers, shift))

    letters.batches = changed
    return letters


def _with_headers(batch: pa.RecordBatch, change: Callable[[Headers], Headers]) -> pa.RecordBatch:
    column = []
    for headers in batch.column("headers").to_pylist():
        found = change({header["key"]: header["value"] for header in headers or []})
        column.append([{"key": key, "value": value} for key, value in found.items()])
    at = batch.schema.get_field_index("headers")
    return batch.set_column(at, batch.schema.field("headers"), pa.array(column, HEADERS))


def _ours(headers: Headers) -> Headers:
    if ledgerq.DEAD_ID not in headers:
        return headers
    failed = nanoseconds(headers.get(ledgerq.DEAD_TIME, b"").decode("utf-8", "replace"))
    added = {
        ORIGINAL_OFFSET: headers[ledgerq.DEAD_ID],
        DELIVERY_COUNT: headers.get(ledgerq.DEAD_COUNT, b"0"),
        REASON: headers.get(ledgerq.DEAD_REASON, b""),
        FAILED_AT: b"%d" % failed,
    }
    return headers | added | {name: headers[name] for name in added if name in headers}


def _theirs(headers: Headers, shift: int) -> Headers:
    if not headers.get(ORIGINAL_OFFSET, b"").isdigit():
        return headers
    id = b"%d" % (int(headers[ORIGINAL_OFFSET]) + shift)
    failed = headers.get(FAILED_AT, b"")
    millis = int(failed) // 10**6 * 10**6 if failed.isdigit() else 0
    reason = headers.get(REASON, b"").split(b"\n")[0][: ledgerq.REASON_BYTES_MAX]
    added = {
        ledgerq.DEAD_COUNT: headers.get(DELIVERY_COUNT, b"0"),
        ledgerq.DEAD_REASON: reason.decode("utf-8", "ignore").encode(),
        ledgerq.DEAD_TIME: rfc3339(millis).encode(),
    }
    known = {name: headers[name] for name in added if name in headers}
    return headers | added | known | {ORIGINAL_OFFSET: id, ledgerq.DEAD_ID: id}


__all__ = ["digest_of", "with_our_headers", "with_their_headers"]
