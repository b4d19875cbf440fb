"""Run the quick tests on every other interpreter that this machine has.

Interpreters are looked for by name on the PATH (`python3.12` and so on) and among pyenv's. Each has
a virtual environment of its own beside `.venv`, without Spark.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# What depends on the interpreter: threads, locks, signals, forks, bytecode. About a minute on two
# cores; the rest is the same code on the same libraries.
TESTS = [
    "tests/unit/consume",
    "tests/unit/log",
    "tests/unit/state",
    "tests/unit/testing",
    "tests/unit/test_batch.py",
    "tests/unit/test_fork.py",
    "tests/unit/test_queue.py",
    "tests/unit/test_stress.py",
    "tests/unit/test_topic.py",
    "tests/crash/test_ctrl_c.py",
    "tests/crash/test_interrupts.py",
    "tests/crash/test_interrupted_close.py",
]

_VERSION = (
    "import sys, sysconfig; t = 't' * bool(sysconfig.get_config_var('Py_GIL_DISABLED')); "
    "print(sys.implementation.name, f'{sys.version_info[0]}.{sys.version_info[1]}{t}', "
    "sys.version.split()[0])"
)


def _candidates() -> Iterator[str]:
    """Where interpreters may be; the newest of pyenv's first, so that it counts for its series."""
    for minor in range(11, 20):
        yield from (f"python3.{minor}", f"python3.{minor}t")
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from sorted(map(str, root.glob("versions/3.*/bin/python3")), reverse=True)


def find() -> dict[str, tuple[str, str]]:
    """Return interpreters from 3.11 on besides this one: by series, the path and the release."""
    found: dict[str, tuple[str, str]] = {}
    for path in _candidates():
        try:
            said = subprocess.run([path, "-c", _VERSION], capture_output=True, text=True)
        except OSError:
            continue
        if said.returncode:
            continue  # a shim of pyenv's for a release that is not chosen
        name, series, release = said.stdout.split()
        is_new = int(series.removesuffix("t").split(".")[1]) >= 11
        if name == "cpython" and is_new and release != sys.version.split()[0]:
            found.setdefault(series, (path, release))
    return dict(sorted(found.items()))


def run(series: str, path: str, arguments: list[str]) -> int:
    """Pass the tests on one interpreter."""
    venv = ROOT / f".venv-{series}"
    python = str(venv / "bin" / "python")
    stamp = venv / ".test"
    if not stamp.exists() or stamp.stat().st_mtime < (ROOT / "pyproject.toml").stat().st_mtime:
        subprocess.run([path, "-m", "venv", str(venv)], check=True)
        install = [python, "-m", "pip", "install", "--quiet", "--editable", ".[test]"]
        subprocess.run(install, cwd=ROOT, check=True)
        stamp.touch()
    pytest = [python, "-m", "pytest", "-n", "auto", "--dist", "loadgroup", "-p", "no:cacheprovider"]
    return subprocess.run([*pytest, *(arguments or TESTS)], cwd=ROOT).returncode


def main() -> None:
    """Run the tests, or those that are named, on each; the exit code says whether all passed."""
    results = {}
    for series, (path, release) in find().items():
        print(f"--- CPython {release}{'t' * series.endswith('t')} ({path})", flush=True)
        results[release] = run(series, path, sys.argv[1:])
    for release, code in results.items():
        print(f"CPython {release}: {'failed' if code else 'passed'}")
    if not results:
        print("no interpreter from 3.11 on was found beside this one")
    sys.exit(any(results.values()))


if __name__ == "__main__":
    main()
