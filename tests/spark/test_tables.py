"""Exports to tables of Delta Lake and Iceberg, where their packages are installed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import OpenStore
from tests.spark.test_export import _fill

from stratalog.errors import OptionError
from stratalog.spark import jobs
from stratalog.spark.jobs.ledger import Ledger


def _needs(package: str) -> pytest.MarkDecorator:
    is_missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(is_missing, reason=f"needs {package}")


def _rows(format: str, out: Path) -> list[dict[str, Any]]:
    if format == "delta":
        import deltalake

        table: Any = deltalake.DeltaTable(str(out)).to_pyarrow_table()
    else:
        from pyiceberg.catalog import load_catalog

        catalog = load_catalog(
            "stratalog", type="sql", uri=f"sqlite:///{out}/_stratalog/iceberg.db",
            warehouse=f"file://{out}/_stratalog/iceberg",
        )  # fmt: skip
        (name,) = catalog.list_tables("stratalog")
        table = catalog.load_table(name).scan().to_arrow()
    rows: list[dict[str, Any]] = table.to_pylist()
    return sorted(rows, key=lambda row: (row["topic"], row["offset"]))


@pytest.mark.parametrize(
    "format",
    [
        pytest.param("delta", marks=_needs("deltalake")),
        pytest.param("iceberg", marks=_needs("pyiceberg")),
    ],
)
def test_a_table_has_every_record_once(
    spark: Any, tmp_path: Path, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    """Round by round, and when one was interrupted after the table's own commit."""
    store = open_store(shards=1)
    _fill(store, 100)
    _fill(store, 10, "a/b c%")
    out = tmp_path / "out"
    jobs.export(store.path, out, spark=spark, format=format, schema="id long, amount double")
    _fill(store, 100, start=100)
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "commit", _cut_short)
        with pytest.raises(KeyboardInterrupt):
            jobs.export(
                store.path, out, spark=spark, format=format, schema="id long, amount double"
            )
    _fill(store, 20, start=200)
    jobs.export(store.path, out, spark=spark, format=format, schema="id long, amount double")
    rows = _rows(format, out)
    orders = [row for row in rows if row["topic"] == "orders"]
    assert [row["offset"] for row in orders] == list(range(220))
    assert [row["id"] for row in orders if row["offset"] % 10] == [n for n in range(220) if n % 10]
    assert len(rows) == 230


def _cut_short(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(("format", "package"), [("delta", "deltalake"), ("iceberg", "pyiceberg")])
def test_without_its_package_it_says_what_to_install(
    spark: Any, tmp_path: Path, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch,
    format: str, package: str,
) -> None:  # fmt: skip
    """Before anything is written."""
    monkeypatch.setitem(sys.modules, package, None)
    store = open_store(shards=1)
    with pytest.raises(OptionError, match=rf"pip install 'stratalog\[{format}\]'"):
        jobs.export(store.path, tmp_path / "out", spark=spark, format=format)
    assert not (tmp_path / "out").exists()
