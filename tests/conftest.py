"""Fixtures for all tests: stores on a monitored disk, an object store, the rule about Java."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stratalog.handles.store import Store
from stratalog.options import StoreOptions
from stratalog.testing import MonitorFs

OpenStore = Callable[..., Store]


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[OpenStore]:
    """Opens stores on the real disk, under the monitor; closes them, and asks the monitor."""
    monitors: list[MonitorFs] = []
    stores: list[Store] = []

    def open(path: Path | None = None, *, read_only: bool = False, **options: Any) -> Store:
        seams = {name: options.pop(name) for name in ("clock", "background") if name in options}
        inner = options.pop("fs", None)
        from stratalog.fs import PosixFileSystem

        monitor = MonitorFs(inner or PosixFileSystem())
        monitors.append(monitor)
        store = Store(
            path or tmp_path / "data",
            StoreOptions.build(options, {}),
            read_only=read_only,
            fs=monitor,
            **seams,
        )
        stores.append(store)
        return store

    yield open
    for store in stores:
        store.close()
    for monitor in monitors:
        monitor.check()


@pytest.fixture
def often() -> Iterator[None]:
    """Threads that take turns after every few bytecodes."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture(scope="session")
def s3_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The `host:port` of an S3 server on loopback with a bucket `bucket`, in its own process."""
    log = tmp_path_factory.mktemp("s3") / "log"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + 30
        while not (found := re.search(r"http://(127\.0\.0\.1:\d+)", log.read_text())):
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        request = urllib.request.Request(f"http://{found[1]}/bucket", method="PUT")
        urllib.request.urlopen(request, timeout=10).close()
        yield found[1]
    finally:
        server.terminate()
        server.wait()


@pytest.hookimpl(trylast=True)  # others mark what needs it
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs Java where there is none, except in CI, where it must be there."""
    if shutil.which("java") is None and not os.environ.get("CI"):
        for item in items:
            if item.get_closest_marker("java"):
                item.add_marker(pytest.mark.skip(reason="needs Java 17 or newer on the PATH"))
