"""A standalone Spark cluster on loopback: a master and workers, processes of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyspark

_HOME = Path(pyspark.__file__).parent
_START_SECONDS = 60


@dataclass
class Cluster:
    """Where it listens, and its processes."""

    directory: Path
    python: str
    address: str = ""
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def workers(self) -> list[subprocess.Popen[bytes]]:
        """The workers, in the order they were started."""
        return self.processes[1:]

    def start(self, role: str, *arguments: str) -> str:
        """Start a master or a worker; returns its log once it is ready."""
        number = len(self.processes)
        log = self.directory / f"{role.lower()}-{number}.log"
        environment = os.environ | {
            "SPARK_HOME": str(_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_WORKER_DIR": str(self.directory / f"work-{number}"),
            "SPARK_DAEMON_MEMORY": "256m",
            "PYSPARK_PYTHON": self.python,
        }
        command = [str(_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{role}"]
        ports = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, *ports, *arguments],
                stdout=output, stderr=subprocess.STDOUT, env=environment, cwd=self.directory,
            )  # fmt: skip
        self.processes.append(process)
        ready = "I have been elected leader" if "Master" in role else "Successfully registered"
        deadline = time.monotonic() + _START_SECONDS
        while ready not in (text := log.read_text()):
            assert process.poll() is None, text
            assert time.monotonic() < deadline, text
            time.sleep(0.05)
        return text

    def add_worker(self) -> subprocess.Popen[bytes]:
        """One more worker, with one core."""
        self.start("worker.Worker", "--cores", "1", "--memory", "700m", self.address)
        return self.processes[-1]


@contextmanager
def cluster(directory: Path, workers: int = 2) -> Iterator[Cluster]:
    """A running cluster whose executors have what Stratalog needs, but not Stratalog."""
    directory.mkdir()
    made = Cluster(directory, python_without_stratalog(directory / "executors"))
    try:
        text = made.start("master.Master")
        found = re.search(r"spark://127\.0\.0\.1:\d+", text)
        assert found, text
        made.address = found[0]
        for _ in range(workers):
            made.add_worker()
        yield made
    finally:
        for process in reversed(made.processes):
            process.terminate()
        for process in made.processes:
            process.wait(30)


def python_without_stratalog(directory: Path) -> str:
    """An environment like ours, except that an editable install in ours is not seen from it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True)
    [packages] = directory.glob("lib/python*/site-packages")
    ours = Path(pyspark.__file__).parent.parent
    (packages / "ours.pth").write_text(f"{ours}\n")
    python = str(directory / "bin" / "python")
    probe = (
        "import importlib.util, sys; sys.exit(importlib.util.find_spec('stratalog') is not None)"
    )
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([python, "-c", probe], check=True, cwd=directory, env=clean)
    return python
