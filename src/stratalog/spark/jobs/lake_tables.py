"""Tables that list exported files: Delta Lake and Iceberg, through their own Python packages.

The files exist already when a table adds them, in one commit of its own. The commit names the store
and the round, so that a repeated round is not added twice.
"""

from __future__ import annotations

from typing import Any, Protocol

from stratalog.errors import OptionError
from stratalog.spark.jobs.destination import STATE, Lake
from stratalog.spark.jobs.ledger import ExportFile

TABLES = ("delta", "iceberg")


class Table(Protocol):
    """A table that files can be added to."""

    has_topic: bool
    """Whether it needs the topic as a column of the files, too."""

    def add(self, store: str, number: int, files: list[ExportFile], lake: Lake) -> None:
        """Add the files of a round, unless it has them already."""


def open_table(format: str, location: str) -> Table | None:
    """Open the table at a place; None for simple files. Raises if its package is missing."""
    if format == "delta":
        return _Delta(location)
    return _Iceberg(location) if format == "iceberg" else None


def _missing(package: str, extra: str) -> OptionError:
    return OptionError(f"exporting to {extra} needs {package}: pip install 'stratalog[{extra}]'")


class _Delta:
    has_topic = False

    def __init__(self, location: str) -> None:
        try:
            import deltalake  # noqa: F401  checks that it is installed
        except ImportError as error:
            raise _missing("deltalake", "delta") from error
        self._location = location

    def add(self, store: str, number: int, files: list[ExportFile], lake: Lake) -> None:
        """Add the files in one transaction, which carries the number of the round."""
        from deltalake import CommitProperties, DeltaTable, Transaction
        from deltalake.transaction import AddAction, create_table_with_add_actions

        app = f"stratalog-{store}"
        actions: list[Any] = [
            AddAction(
                # A URL in the table's log: the package quotes the unquoted path.
                path=file.name, size=file.bytes,
                partition_values=_partition(file), modification_time=file.last_timestamp // 1000,
                data_change=True, stats="{}",
            )
            for file in files
        ]  # fmt: skip
        properties = CommitProperties(app_transactions=[Transaction(app, number)])
        schema = _delta_schema(lake, files[0])
        if not DeltaTable.is_deltatable(self._location):
            create_table_with_add_actions(
                self._location, schema=schema, add_actions=actions, mode="error",
                partition_by=["topic", "day"], commit_properties=properties,
            )  # fmt: skip
            return
        table = DeltaTable(self._location)
        known = table.transaction_version(app)
        if known is not None and known >= number:
            return
        table.create_write_transaction(
            actions, mode="append", schema=table.schema(), partition_by=["topic", "day"],
            commit_properties=properties,
        )  # fmt: skip


def _partition(file: ExportFile) -> dict[str, str | None]:
    return {"topic": file.topic, "day": file.day}


def _arrow_schema(lake: Lake, file: ExportFile) -> Any:
    """Read the columns of an exported file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    return pq.read_schema(pa.BufferReader(lake.get(file.name))).remove_metadata()


def _delta_schema(lake: Lake, file: ExportFile) -> Any:
    import pyarrow as pa
    from deltalake import Schema

    columns = _arrow_schema(lake, file)
    for name, kind in (("topic", pa.string()), ("day", pa.date32())):
        columns = columns.append(pa.field(name, kind))
    return Schema.from_arrow(columns)


class _Iceberg:
    has_topic = True

    def __init__(self, location: str) -> None:
        try:
            import pyiceberg  # noqa: F401  checks that it is installed
        except ImportError as error:
            raise _missing("pyiceberg", "iceberg") from error
        self._location = location

    def add(self, store: str, number: int, files: list[ExportFile], lake: Lake) -> None:
        """Add the files in one snapshot, which carries the number of the round.

        The catalog is a SQLite file beside the data, unless `~/.pyiceberg.yaml` or the environment
        names one called `stratalog`.
        """
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import NoSuchTableError

        catalog = load_catalog(
            "stratalog", type="sql", uri=f"sqlite:///{self._location}/{STATE}/iceberg.db",
            warehouse=f"file://{self._location}/{STATE}/iceberg",
        )  # fmt: skip
        catalog.create_namespace_if_not_exists("stratalog")
        name = f"stratalog.store_{store[:8]}"
        try:
            table = catalog.load_table(name)
        except NoSuchTableError:
            table = self._create(catalog, name, lake, files[0])
        key = "stratalog.round"
        for snapshot in reversed(table.metadata.snapshots):
            known = None if snapshot.summary is None else snapshot.summary.get(key)
            if known is not None:
                if int(known) >= number:
                    return
                break
        paths = [f"{self._location}/{file.name}" for file in files]
        table.add_files(paths, snapshot_properties={key: str(number)})

    def _create(self, catalog: Any, name: str, lake: Lake, file: ExportFile) -> Any:
        table = catalog.create_table(name, schema=_arrow_schema(lake, file))
        with table.update_spec() as spec:
            spec.add_identity("topic")
        return table
