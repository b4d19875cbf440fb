"""One Spark session for all tests here: starting one takes ten seconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from stratalog.spark import session


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of them need Java, run in one process, and are not to mend what Spark warns about."""
    for item in items:
        if "tests/spark/" in item.nodeid:
            item.add_marker(pytest.mark.java)
            if item.get_closest_marker("xdist_group") is None:
                item.add_marker(pytest.mark.xdist_group("spark"))
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A session with two cores of this machine."""
    made = session(
        "local[2]",
        config={
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        },
    )
    yield made
    made.stop()
