"""A temporary view for every topic of a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import stratalog.spark
from stratalog.errors import OptionError


def test_every_topic_is_a_view(spark: Any, tmp_path: Path) -> None:
    """With a lake and without one, whatever its name is; queues are no topics."""
    with stratalog.open(tmp_path / "store", lake=tmp_path / "lake") as store:
        names = {"orders": 25, "re`funds, *": 3, "none yet": 0}
        for name, count in names.items():
            topic = store.create_topic(name, lake=name == "orders", segment_records=10)
            if count:
                topic.append_many([b"%d" % n for n in range(count)])
        store.create_topic("passing", durability="ephemeral")
        store.queue("jobs").put(b"x")
        store.checkpoint()
        store.compact()
        made = stratalog.spark.views(spark, tmp_path / "store", prefix="v_")
        assert made == sorted(f"v_{name}" for name in names)
        for name, count in names.items():
            quoted = f"v_{name}".replace("`", "``")
            found = spark.sql(f"SELECT count(*), max(topic) FROM `{quoted}`").collect()[0]
            assert tuple(found) == (count, name if count else None)
        # Pinned, with a filter and without: as a DataFrame is.
        store.topic("orders").append(b"later")
        few = spark.sql("SELECT offset FROM v_orders WHERE offset >= 20").collect()
        assert sorted(row[0] for row in few) == list(range(20, 25))
        assert spark.table("v_orders").count() == 25
        stratalog.spark.views(spark, tmp_path / "store", prefix="v_")
        assert spark.table("v_orders").count() == 26


def test_every_table_and_series_is_a_view(spark: Any, tmp_path: Path) -> None:
    """The living keys of a table and the points of a series, to be joined."""
    with stratalog.open(tmp_path / "store") as store:
        users = store.table("users")
        users.put_many({"ada": b"a", "bob": b"b"})
        users.delete("bob")
        cpu = store.series("load-1m")
        cpu.write({"user": 0.5}, tags={"host": "a"})
        cpu.write({"user": 1.5}, tags={"host": "b"})
        made = stratalog.spark.views(spark, tmp_path / "store", prefix="w_")
        assert made == ["w_load-1m", "w_users"]
        found = spark.sql(
            "SELECT CAST(key AS STRING), fields.user FROM w_users "
            "JOIN `w_load-1m` ON tags.host = CAST(value AS STRING)"
        ).collect()
        assert [tuple(row) for row in found] == [("ada", 0.5)]


def test_names_that_spark_takes_for_one_are_refused(spark: Any, tmp_path: Path) -> None:
    """Rather than one of them having the other's records."""
    with stratalog.open(tmp_path / "store") as store:
        store.create_topic("orders")
        store.create_topic("Orders")
        with pytest.raises(OptionError, match="'Orders' and 'orders' would be one view"):
            stratalog.spark.views(spark, tmp_path / "store")
