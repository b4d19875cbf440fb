"""The journals of the long run, which decide what is a violation, are taken in rightly."""

from __future__ import annotations

from pathlib import Path

from tests.outsider.journal import Promises


def taken(path: Path, *notes: str) -> Promises:
    """The promises of a process that left these notes."""
    path.write_text("".join(f"{note}\n" for note in notes))
    promises = Promises()
    promises.take(path)
    return promises


def test_an_acknowledgement_in_flight_is_in_doubt_though_another_of_it_was_refused(
    tmp_path: Path,
) -> None:
    """The kill came while delivery 2 was acknowledged, and after delivery 1 had lost its lease."""
    promises = taken(
        tmp_path / "journal",
        "open", "put 7 a", "got 7 1 a", "got 7 2 a", "done-try 7", "done-try 7", "kept 7",
    )  # fmt: skip
    assert promises.in_doubt == {7}


def test_an_acknowledgement_that_was_refused_leaves_no_doubt(tmp_path: Path) -> None:
    """It changed nothing: the message has to be there."""
    promises = taken(tmp_path / "journal", "open", "put 7 a", "got 7 1 a", "done-try 7", "kept 7")
    assert not promises.in_doubt
    promises = taken(tmp_path / "journal", "open", "put 7 a", "got 7 1 a", "done-try 7", "done 7")
    assert not promises.in_doubt
    assert promises.done == {7: 1}
