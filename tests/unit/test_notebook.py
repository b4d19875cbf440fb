"""A store in a notebook: handles that show themselves, and topics that other libraries read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import stratalog
from stratalog import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with a topic, a queue and a group that have something in them."""
    store = stratalog.open(tmp_path / "store", durability="disk")
    orders = store.topic("orders")
    orders.append_many([b"%d" % number for number in range(10)])
    orders.group("billing").poll("worker", limit=3)
    store.queue("jobs").put(b"work")
    return store


def test_every_handle_shows_its_numbers_in_a_notebook(store: Store) -> None:
    """Name and figures as a table, with nothing that a name could break out of."""
    with store:
        topic, queue = store.topic("orders"), store.queue("jobs")
        for handle in (store, topic, queue, topic.group("billing")):
            shown = handle._repr_html_()
            assert shown.startswith("<table>")
            assert shown.count("<tr>") == shown.count("</tr>") > 4
        assert "<th>next offset</th><td>10</td>" in topic._repr_html_()
        assert "<th>pending</th><td>3</td>" in topic.group("billing")._repr_html_()
        odd = store.topic("a<b>&c")
        assert "<b>" not in odd._repr_html_()
        assert "a&lt;b&gt;&amp;c" in odd._repr_html_()


def test_a_handle_that_is_of_no_use_any_more_says_so(store: Store) -> None:
    """A notebook shows a value whether it is asked to or not: that never raises."""
    with store:
        topic = store.topic("orders")
        store.drop_topic("orders")
        assert "dropped" in topic._repr_html_()
    assert "closed" in store._repr_html_()
    assert "closed" in topic._repr_html_()


def test_pyarrow_takes_a_topic_as_it_is(store: Store) -> None:
    """Through the stream interface that Arrow's libraries share."""
    with store:
        table = pa.table(store.topic("orders"))
        assert table["value"].to_pylist() == [b"%d" % number for number in range(10)]
        assert table["offset"].to_pylist() == list(range(10))


def test_a_topic_can_be_taken_twice_and_shows_what_came_since(store: Store) -> None:
    """Every use is a read of its own."""
    with store:
        orders = store.topic("orders")
        assert pa.table(orders).num_rows == pa.table(orders).num_rows == 10
        orders.append(b"more")
        orders.delete(offsets=[0])
        assert pa.table(orders)["offset"].to_pylist() == list(range(1, 11))


def test_polars_takes_a_topic_as_it_is(store: Store) -> None:
    """As a DataFrame."""
    with store:
        frame = pl.DataFrame(store.topic("orders"))
        assert frame["offset"].sum() == 45
        assert frame.height == 10


def test_duckdb_takes_a_topic_as_it_is(store: Store) -> None:
    """By the name of the variable, as it does with DataFrames."""
    with store:
        orders = store.topic("orders")
        found = duckdb.sql('select count(*), max("offset") from orders')
        assert found is not None
        assert found.fetchall() == [(10, 9)]
        assert orders.next_offset == 10


def test_pandas_takes_a_topic_as_it_is(store: Store) -> None:
    """Through Arrow."""
    with store:
        frame = pa.table(store.topic("orders")).to_pandas()
        assert isinstance(frame, pd.DataFrame)
        assert frame["offset"].tolist() == list(range(10))


def test_a_topic_that_was_evicted_from_is_taken_from_where_it_begins(tmp_path: Path) -> None:
    """Evicted records are not asked for."""
    with stratalog.open(tmp_path / "store", durability="disk") as store:
        topic = store.create_topic("t", segment_records=10, retention_records=10)
        for _ in range(4):
            topic.append_many([b"x"] * 10)
            store.checkpoint()
        store.compact()
        assert pa.table(topic)["offset"].to_pylist() == list(range(topic.earliest, 40))
        assert topic.earliest > 0


def test_a_read_only_store_hands_its_topics_over_too(store: Store, tmp_path: Path) -> None:
    """Beside the writer, which may append meanwhile."""
    with store, stratalog.open(tmp_path / "store", read_only=True) as view:
        store.sync()
        assert pa.table(view.topic("orders")).num_rows == 10


CELL = """
store = stratalog.open({path!r}, durability="disk")
orders = store.topic("orders")
print("offset", orders.append(b"x"))
"""


def test_a_cell_can_be_run_again(tmp_path: Path) -> None:
    """At a prompt, which is what a notebook is to Python: the store is opened anew."""
    cell = CELL.format(path=str(tmp_path / "store"))
    text = "import stratalog\n" + cell + cell + "first = orders\n" + cell + "first.append(b'y')\n"
    done = subprocess.run(
        [sys.executable, "-i", "-q"], input=text, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert [line for line in done.stdout.splitlines() if line.startswith("offset")] == [
        "offset 0", "offset 1", "offset 2",
    ]  # fmt: skip
    assert "ClosedError" in done.stderr  # a handle of the store before
    assert "LockedError" not in done.stderr


def test_a_program_is_told_that_it_has_the_store_open(tmp_path: Path) -> None:
    """Closing a store under another part of a program is nothing that happens unasked."""
    with stratalog.open(tmp_path) as store:
        store.topic("orders").append(b"1")
        with pytest.raises(stratalog.LockedError, match="open already, in this process"):
            stratalog.open(tmp_path)
        with pytest.raises(stratalog.LockedError, match="reopen=True"):
            stratalog.open(tmp_path, reopen=False)
        with stratalog.open(tmp_path, read_only=True) as view:  # needs no lock
            assert len(view.topic("orders")) == 1
        again = stratalog.open(tmp_path, reopen=True, shards=3)
        assert store.is_closed
        assert (again.stats().shards, len(again.topic("orders"))) == (3, 1)
        again.close()


def test_reopen_false_counts_at_a_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For those who want the error there, too."""
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    with stratalog.open(tmp_path):
        with pytest.raises(stratalog.LockedError):
            stratalog.open(tmp_path, reopen=False)
        stratalog.open(tmp_path).close()
