"""The runner, for every test here."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.fuzz.inputs import Fuzz


@pytest.fixture
def fuzz(
    record_property: Callable[[str, object], None],
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> Fuzz:
    """The runner, named as the test."""
    return Fuzz(record_property, capsys, request.node.name)
