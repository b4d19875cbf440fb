"""The byte tables in the docstrings say what the structs do."""

from __future__ import annotations

import re
import struct
from types import ModuleType

import pytest

from stratalog.format import (
    arrow,
    batch,
    ceilings,
    claim,
    codec,
    columns,
    control,
    ends,
    frame,
    groups,
    lake,
    manifest,
    merge,
    names,
    points,
    routes,
    schedules,
    segment,
    series,
    snapshot,
    store,
    table,
)
from stratalog.format.claim import ClaimFile
from stratalog.format.frame import Flag, FrameHeader, FrameType
from stratalog.format.store import StoreFile
from stratalog.interop.flo import format as flo
from stratalog.interop.fluxmq import format as fluxmq
from stratalog.interop.ledgerq import format as ledgerq
from stratalog.interop.topics import format as topics

HEAD = ["field", "type", "meaning"]
CODES = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i32": "i", "i64": "q"}
MODULES = [
    arrow, batch, ceilings, claim, codec, columns, control, ends, frame, groups, lake, manifest,
    merge, names, points, routes, schedules, segment, series, snapshot, store, table, flo, fluxmq,
    ledgerq, topics,
]  # fmt: skip

# In the order in which the tables stand in the docstrings.
STRUCTS = {
    "ceilings": [ceilings.HEADER, ceilings.SLOT],
    "claim": [claim.CLAIM],
    "codec": [codec.PREFIX],
    "control": [control.PREFIX, control.RESERVE, control.CHECKPOINT, control.FLOOR],
    "ends": [ends.HEADER, ends.ENTRY],
    "frame": [frame.HEADER],
    "groups": [groups.GROUP],
    "lake": [lake.LAKE, lake.HEADER],
    "manifest": [manifest.HEADER],
    "points": [points.HEADER],
    "routes": [routes.FORWARD],
    "schedules": [schedules.DUE],
    "series": [series.RULES, series.CURSOR],
    "segment": [segment.HEADER, segment.INDEX, segment.FOOTER, segment.SUMMARY],
    "snapshot": [snapshot.HEADER, snapshot.SECTION],
    "store": [store.STORE],
    "table": [table.HEADER, table.CHUNK],
    "flo": [
        flo.ENTRY, flo.COMMAND, flo.SEGMENT, flo.INDEX, flo.FOOTER, flo.SNAPSHOT, flo.SECTION,
        flo.SNAPSHOT_FOOTER,
    ],
    "fluxmq": [
        fluxmq.BATCH, fluxmq.INDEX_HEADER, fluxmq.INDEX, fluxmq.TIME_HEADER, fluxmq.TIME,
    ],
    "ledgerq": [
        ledgerq.HEADER, ledgerq.ENTRY, ledgerq.INDEX_HEADER, ledgerq.INDEX, ledgerq.METADATA,
    ],
    "topics": [topics.FRAME, topics.SNAPSHOT, topics.SEGMENT_FRAME, topics.INDEX],
}  # fmt: skip

Table = list[list[str]]


def _tables(text: str) -> list[Table]:
    """Rows of every table of a docstring, the one of column heads first."""
    tables = re.findall(r"(?:^\|.*\|\n?)+", text, re.MULTILINE)
    rows = [[line.strip("|").split("|") for line in table.splitlines()] for table in tables]
    return [[[cell.strip() for cell in row] for row in table] for table in rows]


def _byte_tables(text: str) -> list[Table]:
    return [table[2:] for table in _tables(text) if table[0] == HEAD]


def _code(type: str) -> str:
    return type if re.fullmatch(r"\d+s", type) else CODES[type]


def _name(module: ModuleType) -> str:
    """Return the last word of a module of ours, or the package of a foreign layout."""
    return module.__name__.removesuffix(".format").rpartition(".")[2]


FOUND = {_name(module): _byte_tables(module.__doc__ or "") for module in MODULES}
PAIRS = [
    pytest.param(table, layout, id=f"{name}-{index}")
    for name, layouts in STRUCTS.items()
    for index, (table, layout) in enumerate(zip(FOUND[name], layouts, strict=True))
]


def test_every_byte_table_has_a_struct() -> None:
    """No table without a struct to hold it to, no struct without a table."""
    assert {name: len(tables) for name, tables in FOUND.items() if tables} == {
        name: len(layouts) for name, layouts in STRUCTS.items()
    }


@pytest.mark.parametrize(("table", "layout"), PAIRS)
def test_a_byte_table_is_its_struct(table: Table, layout: struct.Struct) -> None:
    """Equal numbers of fields, of equal types, in equal order and total size."""
    codes = [_code(type) for _, type, _ in table]
    assert "<" + "".join(codes) == layout.format
    assert sum(struct.calcsize("<" + code) for code in codes) == layout.size
    assert len(layout.unpack(bytes(layout.size))) == len(table)


@pytest.mark.parametrize(("table", "layout"), PAIRS)
def test_the_fields_of_a_byte_table_have_names_and_meanings(
    table: Table, layout: struct.Struct
) -> None:
    """Each has its own name, and something is said about it."""
    fields = [field for field, _, _ in table]
    assert all(re.fullmatch(r"[a-z_]+", field) for field in fields)
    assert len(set(fields)) == len(fields)
    assert all(meaning for _, _, meaning in table)


def test_the_frame_table_names_what_a_header_decodes_to() -> None:
    """In the same order, but for what is only checked."""
    checked = {"magic", "version", "header_checksum"}
    fields = [field for field, _, _ in FOUND["frame"][0] if field not in checked]
    assert tuple(fields) == FrameHeader._fields


def test_the_store_table_names_what_a_store_file_decodes_to() -> None:
    """In the same order, but for what is only checked."""
    checked = {"magic", "version", "reserved", "checksum"}
    fields = [field for field, _, _ in FOUND["store"][0] if field not in checked]
    assert (*fields, "version") == StoreFile._fields


def test_the_claim_table_names_what_a_claim_file_decodes_to() -> None:
    """In the same order, but for what is only checked."""
    checked = {"magic", "version", "reserved", "checksum"}
    fields = [field for field, _, _ in FOUND["claim"][0] if field not in checked]
    assert tuple(fields) == ClaimFile._fields


def test_the_sections_of_a_batch_are_documented_in_the_order_of_their_flags() -> None:
    """Every flag has its section, and the bits follow the sections."""
    (table,) = _tables(columns.__doc__ or "")
    assert table[0] == ["section", "flag", "content"]
    flags = [flag for _, flag, _ in table[2:] if flag]
    assert set(flags) == {name for name in vars(Flag) if name.isupper()}
    flags.remove("SHORT_TIMESTAMPS")  # came later, and stands in for TIMESTAMPS
    bits = [vars(Flag)[flag] for flag in flags]
    assert bits == [*(1 << bit for bit in range(3, 14)), Flag.EVENT_TIMES]


def test_frame_types_keep_their_numbers() -> None:
    """They are on disk: a new one goes to the end."""
    assert [type.name for type in FrameType][:8] == [
        "RECORDS", "TOPIC", "DELETE", "GROUP", "CHECKPOINT", "MULTI", "ADOPT", "RESERVE",
    ]  # fmt: skip
    assert list(FrameType) == list(range(1, len(FrameType) + 1))
