"""Every error of the catalogue is raised by its input, and every error the frontends make is in it."""

from __future__ import annotations

from typing import Any

import error_cases
import error_sites
import pytest

ROWS = [(kind, row) for kind in error_cases.KINDS for row in error_cases.rows(kind)]


@pytest.mark.parametrize(
    ("kind", "row"), ROWS, ids=[f"{kind}-{number}" for number, (kind, _) in enumerate(ROWS)]
)
def test_the_input_raises_the_error(kind: str, row: dict[str, Any]) -> None:
    error = error_cases.raised(kind, row)
    assert error is not None, "no error"
    assert error_cases.described(error) == {key: row[key] for key in ("message", "where", "error")}
    assert row["do"] and row["do"] in error.message


@pytest.mark.parametrize("kind", error_cases.KINDS)
def test_no_error_is_missing(kind: str) -> None:
    """Each place in the modules where an error is made is passed by the error of some line."""
    passed: set[tuple[str, int]] = set()
    for row in error_cases.rows(kind):
        error = error_cases.raised(kind, row)
        if error is not None:
            passed |= error_sites.ways(error)
    assert not error_cases.missing(kind, passed)


@pytest.mark.parametrize("kind", error_cases.KINDS)
def test_places_are_named(kind: str) -> None:
    """Only an input as a whole has no place."""
    for row in error_cases.rows(kind):
        assert row["where"] or row["error"] == "ConstraintTooComplex" or row.get("whole"), row["message"]


def test_sites_are_found_and_missed() -> None:
    """The judge itself: a place counts only if an error came through it."""
    places = error_sites.sites(["frontends/choice.py"])
    error = error_cases.raised("choice", {"input": []})
    assert error is not None
    hit = [place for place in places if error_sites.reached(place, error_sites.ways(error))]
    assert len(hit) == 1 < len(places)
