"""A real broker of Kafka on loopback, a producer, and the command line on a Spark that reads it.

Jars come from Maven Central, by `mvn`, into a directory that is kept between runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from py4j.java_gateway import JavaGateway

POM = Path(__file__).with_name("kafka_pom.xml")
RUNNER = Path(__file__).with_name("kafka_runner.py")
# Of all jars: what Spark has to have besides its own.
SPARK_JARS = ("spark-sql-kafka", "spark-token-provider", "kafka-clients", "commons-pool2")
JAVA_OPTIONS = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m"]
RECORD_BYTES_MAX = 100_000
"""The store's bound in `CommandLine`: a broker takes no record of the default's size."""
_START_SECONDS_MAX = 60.0


def find_jars() -> Path:
    """The directory of all jars, filled if it is not there yet; skips where it cannot be had."""
    digest = hashlib.sha256(POM.read_bytes()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    place = cache / "stratalog-tests" / f"kafka-{digest}"
    if place.exists():
        return place
    if shutil.which("mvn") is None:
        pytest.skip("a broker of Kafka comes from Maven Central, and there is no mvn here")
    fresh = place.with_name(f"{place.name}.{os.getpid()}")
    command = [
        "mvn", "-q", "-B", "-f", str(POM), "dependency:copy-dependencies",
        "-DincludeScope=runtime", f"-DoutputDirectory={fresh}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        pytest.skip(f"a broker of Kafka cannot be had from Maven Central: {done.stdout[-500:]}")
    try:
        fresh.rename(place)
    except OSError:
        if not place.exists():
            raise
        shutil.rmtree(fresh)  # another worker was first
    return place


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _settings(root: Path, port: int, controller: int) -> str:
    lines = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(root / "data"),
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "1",
        "auto.create.topics.enable": "false",
        # Records of tests are years old: on a slow machine the broker deleted them meanwhile.
        "log.retention.ms": "-1",
    }
    return "".join(f"{name}={value}\n" for name, value in lines.items())


@contextlib.contextmanager
def run_broker(jars: Path, root: Path) -> Iterator[str]:
    """Run a broker of one node; yields its host and port."""
    port, controller = _free_port(), _free_port()
    settings = root / "server.properties"
    settings.write_text(_settings(root, port, controller))
    java = ["java", *JAVA_OPTIONS, "-cp", f"{jars}/*"]
    format = ["kafka.tools.StorageTool", "format", "-t", "AAAAAAAAAAAAAAAAAAAAAQ"]
    subprocess.run([*java, *format, "-c", str(settings)], check=True, capture_output=True)
    with (root / "broker.log").open("wb") as log:
        process = subprocess.Popen(
            [*java, "kafka.Kafka", str(settings)], stdout=log, stderr=subprocess.STDOUT
        )
    try:
        deadline = time.monotonic() + _START_SECONDS_MAX
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            assert process.poll() is None, (root / "broker.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


class Producer:
    """Kafka's own producer, in a JVM of its own."""

    def __init__(self, jars: Path, servers: str) -> None:
        (py4j,) = (Path(pyspark.__file__).parent / "jars").glob("py4j*.jar")
        self._gateway: Any = JavaGateway.launch_gateway(
            jarpath=str(py4j), classpath=f"{jars}/*", javaopts=JAVA_OPTIONS, die_on_exit=True
        )
        self._servers = servers
        self._clients: Any = self._gateway.jvm.org.apache.kafka.clients

    def close(self) -> None:
        """End the JVM."""
        self._gateway.shutdown()

    def _properties(self, **more: str) -> Any:
        made = self._gateway.jvm.java.util.Properties()
        made.put("bootstrap.servers", self._servers)
        for name, value in more.items():
            made.put(name.replace("_", "."), value)
        return made

    def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic."""
        admin = self._clients.admin.Admin.create(self._properties())
        topics = self._gateway.jvm.java.util.ArrayList()
        topics.add(self._clients.admin.NewTopic(name, partitions, 1))
        admin.createTopics(topics).all().get()
        admin.close()

    @contextlib.contextmanager
    def sending(self, transaction: str | None = None) -> Iterator[Any]:
        """A producer; with `transaction` one that can begin, commit and abort."""
        serializer = "org.apache.kafka.common.serialization.ByteArraySerializer"
        settings = {"key_serializer": serializer, "value_serializer": serializer}
        if transaction is not None:
            settings["transactional_id"] = transaction
        producer = self._clients.producer.KafkaProducer(self._properties(**settings))
        try:
            if transaction is not None:
                producer.initTransactions()
            yield producer
        finally:
            producer.close()

    def send(
        self,
        producer: Any,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        timestamp: int | None = None,
        headers: list[tuple[str, bytes | None]] | None = None,
    ) -> None:
        """Send one record; the time is in milliseconds."""
        jvm = self._gateway.jvm
        boxed = None if timestamp is None else jvm.java.lang.Long(str(timestamp))
        record = self._clients.producer.ProducerRecord(
            topic, jvm.java.lang.Integer(str(partition)), boxed, key, value
        )
        for name, header in headers or ():
            record.headers().add(name, header)
        producer.send(record).get()


class CommandLine:
    """`stratalog` in a process whose Spark has the source of Kafka, one command after another."""

    def __init__(self, jars: Path) -> None:
        chosen = [str(jar) for jar in jars.glob("*.jar") if jar.name.startswith(SPARK_JARS)]
        assert len(chosen) == len(SPARK_JARS)
        arguments = f"--jars {','.join(chosen)} pyspark-shell"
        self._process = subprocess.Popen(
            [sys.executable, str(RUNNER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={
                **os.environ,
                "PYSPARK_SUBMIT_ARGS": arguments,
                "STRATALOG_RECORD_BYTES_MAX": str(RECORD_BYTES_MAX),
            },
            text=True,
        )

    def run(self, *arguments: str) -> tuple[int, str]:
        """Run a command; returns its exit code and all that it printed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(arguments) + "\n")
        self._process.stdin.flush()
        code, printed = json.loads(self._process.stdout.readline())
        return code, printed

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        if self._process.stdout is not None:
            self._process.stdout.close()
