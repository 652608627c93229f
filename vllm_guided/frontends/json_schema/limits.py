"""Every tunable of the JSON Schema frontend, with its default and its reason.

The numbers bound either what a model may write (so that output ends) or what a compile may cost (so
that a hostile schema is refused with ConstraintTooComplex, not served slowly).
"""

from __future__ import annotations

# What may be written ---------------------------------------------------------------------------------

MAX_WHITESPACE = 32
"""Longest run of blanks between two JSON tokens; the commonest complaint is output that never ends."""

MAX_INTEGER_DIGITS = 64
"""Digits of an unbounded integer part; 64 is more than any 128-bit number has."""

MAX_FRACTION_DIGITS = 64
"""Digits after the decimal point where nothing else bounds them; a float has at most 17 that count."""

MAX_ZEROS = 24
"""Zeros after the point before the first digit that takes a number off its bound."""

MAX_EXPONENT = 307
"""Largest decimal exponent behind one digit: below the largest double (1.8e308) with any digits, so that
no reader takes a number for infinity."""

MIN_EXPONENT = -323
"""Smallest exponent beside a bound: every reader takes a number with it for more than zero. Of all doubles,
this leaves out the very smallest, 5e-324."""

FLOAT_DIGITS = 16
"""Fraction digits in the mantissa of an integer in scientific form: what a float's shortest form has."""

# What a compile may cost ------------------------------------------------------------------------------

MAX_IN_PLACE_DEPTH = 60
"""Nesting of allOf, anyOf, $ref and the like at one place of the instance."""

MAX_SCOPES = 200
"""Dynamic scopes (which schema each contested ``$dynamicAnchor`` means) of one compile."""

MAX_EMPTINESS_DEPTH = 12
"""How deep a sub-schema is looked into to see early that nothing satisfies it."""

MAX_ALTERNATIVES = 2_000
"""Alternatives of one type at one place after allOf, oneOf, not, ... are multiplied out."""

MAX_STEPS = 300_000
"""Intersections and complements of one compile."""

MAX_RULES = 60_000
"""Rules of one grammar."""

MAX_SHUFFLES = 5_000
"""States that go into such shuffles in one grammar; what comes later stands in a row."""

PROPERTIES_IN_BLOCK = 32
"""Properties in the schema's order that one automaton holds, of more than twice as many."""

MAX_VARIANTS = 4_000
"""Combinations of wanted members that the members of one object can be, beyond one for each."""

MAX_SHUFFLE_STATES = 150
"""Properties that several schemas bring to one object are shuffled while the states stay under this."""

MAX_OBJECT_STATES = 40_000
"""States of one object or array whose members are counted."""

MAX_FEW_NAMES = 250
"""Names of a class that are told apart one by one where they must differ; more are compared as texts."""

MAX_NUMBER_STATES = 12_000
"""States of one number automaton (multipleOf is a remainder to keep)."""

MAX_DECIMALS = 1_100
"""Decimals of a bound or a multipleOf: more than any double has."""

COUNTED_NUMBER_STATES = 5_000
"""The same where digits are counted beside the remainder."""

COUNTED_REMAINDERS = 128
"""Remainders of a multipleOf without a maximum for which the digits are bounded too."""

MAX_STRING_STATES = 9_000
"""States of one string automaton after a length is multiplied into a pattern."""

COUNTED_STATES = 4_000
"""Pattern with a length that ends in one repeated class, which is counted: states before it."""

LENGTH_EDGES = 40_000
"""Pattern with a length: unrolled as long as its characters' edges stay under this (twice for a minLength
alone); else the longest strings are left out."""

LENGTH_BYTES = 250_000
"""The same of the bytes that spell the characters: classes with much of Unicode have many."""

SPELLED_EDGES = 400
"""Up to so many labels, every JSON spelling of a pattern's characters is taken; above, the usual one."""

MAX_LISTED_ITEMS = 256
"""Distinct items out of so many values are told apart one by one, in every spelling; more as texts."""

MAX_REPEATED_ITEMS = 16
"""Out of so many values one may be asked for that stands twice (uniqueItems negated)."""

MAX_FEW_ITEMS = 4_000
"""Arrays of distinct items end before they run out of them; where there are more, nobody gets there."""

MAX_SHARED_ITEMS = 10
"""Scalars that several items of a tuple of distinct items share: which are used is kept in the states."""

MAX_SHARED_NAMES = 48
"""Names of other objects that an open object in an array of distinct items may have as well."""

MAX_SECONDS = 5.0
"""Processor time of one compile, looked at between steps of the algebra and between rules."""
