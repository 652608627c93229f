"""Bring the catalogue of errors up to date: ``python tests/tools/error_cases.py ebnf regex``.

A line needs its input only; message, place and class are filled in from what it raises now. What says what to
do is taken from the message's last part where the line does not say it: look it over.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import error_cases
import error_sites

ORDER = ("message", "do", "where", "error", "whole", "options", "limits", "input", "build")


def advice(message: str) -> str:
    """The part behind the last colon or semicolon, or else the last comma."""
    return next(
        (re.split(sign, message)[-1] for sign in ("[;:] ", ", ") if re.search(sign, message)), message
    )


def main(kinds: list[str]) -> int:
    """Rewrite the files of the kinds; print what has no error, and which errors have no line."""
    for kind in kinds or list(error_cases.KINDS):
        passed: set[tuple[str, int]] = set()
        lines = []
        for row in error_cases.rows(kind):
            error = error_cases.raised(kind, row)
            if error is None:
                print(f"{kind}: no error from {str(error_cases.constraint(row))[:200]!r}")
                continue
            passed |= error_sites.ways(error)
            row = {**row, **error_cases.described(error)}
            if row.get("do", "") not in error.message or not row.get("do"):
                row["do"] = advice(error.message)
            lines.append(json.dumps({key: row[key] for key in ORDER if key in row}, ensure_ascii=False))
        text = "\n".join(lines) + "\n"
        (error_cases.FOLDER / f"{kind}.jsonl").write_text(
            text.encode("utf-8", "backslashreplace").decode("utf-8")
        )
        for place in error_cases.missing(kind, passed):
            print(f"{kind}: no line for {place}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
