"""Cases of a test of which `make test` has a few, and `make test-whole` the others."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def whole_but(quick: Collection[Any], cases: Iterable[Any]) -> list[Any]:
    """For `pytest.mark.parametrize`: `cases`, whole except for the `quick` ones."""
    assert quick, "no case is left"
    given = list(cases)
    assert all(case in given for case in quick), "a case that there is not"
    return [
        case if case in quick else pytest.param(case, marks=pytest.mark.whole) for case in given
    ]
