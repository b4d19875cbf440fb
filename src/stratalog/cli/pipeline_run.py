"""The command that runs a declared pipeline."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from stratalog.cli.output import AsJson, write_json, write_line
from stratalog.cli.spark import Master, hidden_errors
from stratalog.errors import OptionError


def run(
    file: Annotated[Path, typer.Argument(help="The pipeline: a TOML file.", show_default=False)],
    master: Master = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Have Spark check everything; move nothing.")
    ] = False,
    every: Annotated[
        float | None,
        typer.Option(
            "--every", metavar="SECONDS", help="Repeat at this interval, until interrupted."
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show Spark's own messages.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run a declared pipeline over what is new since its last run.

    The file names sources, steps (SQL or Python) and sinks; see docs/pipelines.md.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (FileNotFoundError, IsADirectoryError):
        raise OptionError(f"no pipeline file {file}") from None
    except UnicodeDecodeError:
        raise OptionError(f"{file} is not UTF-8, so it is no pipeline file") from None
    # After the checks that need neither: these two take a second to import.
    from stratalog.spark.jobs.pipeline_file import load_pipeline

    pipeline = load_pipeline(file, text)
    from stratalog.spark.jobs.pipeline import run_pipeline

    with contextlib.ExitStack() as stack:
        on_event: Callable[[str], None] = print
        if not verbose:
            on_event = stack.enter_context(hidden_errors()).report
        if as_json:
            on_event = _say_nothing
        try:
            rounds = run_pipeline(
                pipeline,
                master=master or "local[*]",
                dry_run=dry_run,
                every=every,
                on_event=on_event,
            )
        except KeyboardInterrupt:
            if every is None:
                raise
            return  # the way a pipeline without end ends
    summary = {
        "pipeline": pipeline.name,
        "dry_run": dry_run,
        "rounds": rounds,
        "sources": [source.name for source in pipeline.sources],
        "steps": [step.name for step in pipeline.steps],
        "sinks": [sink.name for sink in pipeline.sinks],
        "storage": pipeline.storage,
    }
    if as_json:
        write_json(summary)
        return
    flow = " -> ".join(
        ", ".join(names)
        for names in (summary["sources"], summary["steps"], summary["sinks"])
        if names and isinstance(names, list)
    )
    write_line(f"{pipeline.name}: {'checked' if dry_run else 'done'}: {flow}")


def _say_nothing(_: str) -> None:
    pass
