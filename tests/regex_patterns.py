"""Random patterns for two dialects and the texts to try them on; patterns as a user would type them."""

from __future__ import annotations

from itertools import product

from hypothesis import strategies as st

ALPHABET = "ab_ \n"
TEXTS = ["".join(letters) for length in range(5) for letters in product(ALPHABET, repeat=length)]
"""Every text of at most four letters of the alphabet."""

LETTERS = st.sampled_from(
    ["a", "b", "_", " ", r"\n", ".", "[ab]", "[^a]", r"\w", r"\W", r"\s", r"[^\s_]", r"[a-z]"]
)
ASSERTIONS = st.sampled_from(["^", "$", r"\b", r"\B"])
COUNTS = st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "{1,}", "{1,3}", "*?", "+?", "{0,2}?"])


def _fixed(pieces: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Bodies of one width, as Python's lookbehind needs them."""
    return st.lists(st.one_of(LETTERS, pieces), min_size=1, max_size=2).map("".join)


def patterns(*, fixed_lookbehind: bool, extra: tuple[str, ...] = ()) -> st.SearchStrategy[str]:
    """Patterns with groups, alternation, counts, anchors, word boundaries and nested lookaround."""
    atoms = (
        st.one_of(LETTERS, ASSERTIONS, st.sampled_from(extra)) if extra else st.one_of(LETTERS, ASSERTIONS)
    )

    def grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        grouped = inner.map(lambda body: f"(?:{body})")
        behind = _fixed(ASSERTIONS) if fixed_lookbehind else inner
        return st.one_of(
            st.lists(inner, min_size=1, max_size=4).map("".join),
            st.lists(inner, min_size=2, max_size=3).map(lambda options: f"(?:{'|'.join(options)})"),
            st.tuples(st.one_of(LETTERS, grouped), COUNTS).map("".join),
            st.tuples(st.sampled_from(["(?=", "(?!"]), inner).map(lambda pair: f"{pair[0]}{pair[1]})"),
            st.tuples(st.sampled_from(["(?<=", "(?<!"]), behind).map(lambda pair: f"{pair[0]}{pair[1]})"),
        )

    return st.recursive(atoms, grow, max_leaves=10)
