"""A stream whose driver is killed at random moments writes every record once.

`STRATALOG_STREAM_KILLS=20` kills it so often.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import stratalog

KILLS = int(os.environ.get("STRATALOG_STREAM_KILLS", "2"))
RECORDS = 400 + 130 * KILLS
SEED = int(os.environ.get("STRATALOG_STREAM_SEED", "1"))
HERE = Path(__file__).parent


def start(errors: Path, *arguments: Path) -> subprocess.Popen[bytes]:
    """The driver, in a session of its own: Java and its Python go down with it."""
    with errors.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, str(HERE / "killed_stream.py"), *map(str, arguments)],
            start_new_session=True, stdout=subprocess.DEVNULL, stderr=output,
        )  # fmt: skip


def copied(path: Path) -> dict[str, list[bytes | None]]:
    """Read what the target holds, whichever process writes it."""
    with stratalog.open(path, read_only=True) as store:
        return {name: store.topic(name).read_values() for name in store.topics()}


def wait_for(driver: subprocess.Popen[bytes], target: Path, count: int) -> bool:
    """Return once so many records were copied; False if the driver came to its end before."""
    deadline = time.monotonic() + 600
    while sum(map(len, copied(target).values())) < count:
        if driver.poll() is not None:
            return False
        assert time.monotonic() < deadline, "the stream does not get on"
        time.sleep(0.02)
    return True


def test_a_stream_that_is_killed_again_and_again_writes_every_record_once(tmp_path: Path) -> None:
    """Between any two steps: staging, publishing, adopting, and what Spark notes of it."""
    source, target, checkpoint = (tmp_path / name for name in ("source", "target", "checkpoint"))
    errors = tmp_path / "errors.txt"
    values = [b"x" * (n % 2) + b"%d" % (10000 + n) for n in range(RECORDS)]
    with stratalog.open(source) as store:
        store.topic("in").append_many(values)
    stratalog.open(target).close()
    rng = random.Random(SEED)
    kills = 0
    while kills < KILLS:
        driver = start(errors, source, target, checkpoint)
        try:
            have = sum(map(len, copied(target).values()))
            if not wait_for(driver, target, have + rng.randrange(1, 150)):
                assert driver.returncode == 0, errors.read_text()
                break
            time.sleep(rng.random() * 0.4)  # anywhere in the batch after it
        finally:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
        kills += 1
    driver = start(errors, source, target, checkpoint)
    assert driver.wait(280) == 0, errors.read_text()
    found = copied(target)
    assert sorted(v for some in found.values() for v in some if v) == sorted(values), f"seed {SEED}"
    for name, some in found.items():
        assert some == sorted(some, key=lambda v: int((v or b"").lstrip(b"x"))), name
    assert kills
    assert stratalog.verify(target).ok
