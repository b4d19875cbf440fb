"""Python code in a process of its own, with limits."""

from __future__ import annotations

import resource
import subprocess
import sys
import textwrap


def run_limited(code: str, *args: str, **limits: int) -> str:
    """Run code with limits (`NOFILE=256`) and arguments; returns what it printed."""

    def apply() -> None:
        for name, value in limits.items():
            kind = getattr(resource, f"RLIMIT_{name}")
            resource.setrlimit(kind, (value, resource.getrlimit(kind)[1]))

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *args],
        preexec_fn=apply,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout
