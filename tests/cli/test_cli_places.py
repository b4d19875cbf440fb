"""Every command against every place that it cannot work with: one sentence, and its exit code.

Users met tracebacks where a file was missing, a directory stood where a file should, or a package
was not installed. So every command that is added goes into the table here, and through all of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.places import (
    COMMANDS,
    CREATE,
    IS_ROOT,
    OTHERS,
    PLACES,
    SPARK_COMMANDS,
    assert_one_sentence,
    assert_refused,
    leaves,
    run,
)

import stratalog


def test_every_command_is_in_the_table() -> None:
    """A new command gets its line there, on purpose."""
    assert set(leaves()) == set(COMMANDS) | set(SPARK_COMMANDS) | OTHERS


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_place_that_is_no_store_is_one_sentence(
    command: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is there instead, and the exit code says of what kind the mistake is."""
    if place == "unreadable" and IS_ROOT:
        pytest.skip("nothing is unreadable to root")
    if place == "missing" and command in CREATE:
        pytest.skip("it makes a store there")
    monkeypatch.chdir(tmp_path)
    path = PLACES[place][0](tmp_path)
    assert_refused(command, place, run(command, COMMANDS[command], store=path, topic="orders"))


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in CREATE])
def test_a_misspelt_name_is_one_sentence(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends with 2, and nothing of that name is created."""
    if not {"<topic>", "jobs"} & set(COMMANDS[command]):
        pytest.skip("it names no topic")
    monkeypatch.chdir(tmp_path)
    with stratalog.open(tmp_path / "data", shards=1) as store:
        store.topic("orders").append(b"x")
    assert_one_sentence(
        run(command, COMMANDS[command], store=tmp_path / "data", topic="ordres"), {2}
    )
    with stratalog.open(tmp_path / "data", read_only=True) as store:
        assert store.topics() == ["orders"]


_WITHOUT_PYSPARK = """
import json, sys
sys.modules["pyspark"] = None  # as if it were not installed
from tests.cli.places import OTHERS, SPARK_COMMANDS, run

path, file = sys.argv[1:]
found = {
    name: run(name, arguments, store=path, topic="orders")
    for name, arguments in SPARK_COMMANDS.items()
}
found["pipeline run"] = run("pipeline run", [file])
print(json.dumps({
    name: [result.exit_code, result.stdout, result.stderr, repr(result.exception)]
    for name, result in found.items()
}))
"""

_PIPELINE = """
[sources.orders]
topic = "orders"
path = "data"

[sinks.copy]
from = "orders"
topic = "copy"
path = "data"
"""


# `import` and `export` ended in a traceback where PySpark was not installed.
def test_without_pyspark_every_command_says_what_to_install(tmp_path: Path) -> None:
    """In one line, with the exit code of a call that cannot work."""
    with stratalog.open(tmp_path / "data", shards=1) as store:
        store.topic("orders").append(b"x")
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    (tmp_path / "flow.toml").write_text(_PIPELINE)
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_PYSPARK, str(tmp_path / "data"), "flow.toml"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found) == {*SPARK_COMMANDS, "pipeline run"}
    for name, (code, output, errors, exception) in found.items():
        assert (name, code, output, exception) == (name, 2, "", "SystemExit(2)")
        assert errors.startswith("error: ")
        assert errors.count("\n") == 1, errors
        assert "pip install 'stratalog[spark]'" in errors


@pytest.mark.parametrize("make", ["missing", "directory", "bytes", "not TOML", "cannot be read"])
def test_a_pipeline_file_that_is_none_is_one_sentence(make: str, tmp_path: Path) -> None:
    """Before Spark is even started."""
    file = tmp_path / "flow.toml"
    if make == "directory":
        file.mkdir()
    elif make == "bytes":
        file.write_bytes(b"\xff\xfe\x00")
    elif make == "not TOML":
        file.write_text("this is no TOML")
    elif make == "cannot be read":
        file = Path("/proc/self/mem")  # what a bad sector gives
    assert_one_sentence(run("pipeline run", [str(file)]), {2, 5})
