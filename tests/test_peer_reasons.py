"""Each peer's case of these kinds that does not pass is on a list, with the reason to read."""

from __future__ import annotations

import json

import corpora

KINDS = ("ebnf", "lark", "regex", "structural_tag")


def test_every_known_failure_has_its_reason() -> None:
    known = {case for case in corpora.Ratchet.load("peers").status_of() if case.startswith(KINDS)}
    reasons = json.loads((corpora.RATCHETS / "peers_reasons.json").read_text())
    assert known == {case for case in reasons if case.startswith(KINDS)}
    assert all(len(reason) > 40 for reason in reasons.values())
    assert not [case for case in corpora.Ratchet.load("peer_errors").status_of() if case.startswith(KINDS)]
    assert not [case for case in corpora.Ratchet.load("reported").status_of() if case.startswith(KINDS)]
