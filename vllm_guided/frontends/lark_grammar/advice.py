"""What to write instead, for each of the complaints that Lark's own loader makes.

In: Lark's message. Out: the message with what to do behind it. The table names a complaint by a part of it.
"""

from __future__ import annotations

ADVICE = (
    ("missing colon", "a rule is written  name: ...  and a terminal  NAME: ..."),
    ("Incorrect type of value", "text is written in double quotes, a pattern between slashes"),
    ("Unclosed parenthesis", "add ) or ]"),
    ("Unmatched closing parenthesis", "leave it out, or open it"),
    ("Illegal name", "rules are named in small letters, terminals in capitals"),
    ("Alias expects lowercase name", "write  -> name"),
    ("Unexpected colon", "one definition a line; text is written in double quotes"),
    ("Misplaced operator", "an operator (? * + |) stands behind what it is about, and only one there"),
    ("Expecting option", "begin a definition with its name and a colon, a further option with |"),
    ("Terminal names cannot contain dots", "a priority is a number, as in NAME.2: ..."),
    ("Expecting rule or terminal definition", "begin the line with  name:  or  NAME:"),
    ("%import expects a name", "write  %import common.NUMBER"),
    ("%ignore expects a value", "write  %ignore WS  or  %ignore /[ ]+/"),
    ("Expecting a value", "text is written in double quotes, a pattern between slashes"),
    ("nexpected input", "text stands in double quotes, a pattern between slashes, each on one line"),
    ("is not expected here", "write names, \"text\", /patterns/, ( ), [ ], | and ? * + ~ only"),
    ("used but not defined", "define it, or import it as in  %import common.NUMBER"),
    ("defined more than once", "keep one; %extend adds to a definition, %override replaces it"),
    ("Wrong number of template arguments", "give as many as its definition has"),
    ("were marked to ignore", "define them, or write the pattern itself, as in  %ignore /[ ]+/"),
    ("Cannot override a nonexisting", "leave %override out, or import it"),
    ("wasn't defined before", "leave %extend out, or import it"),
    ("Cannot extend rule with different parameters", "give it those of its definition"),
    ("it is abstract", "define it instead of declaring it (%declare)"),
    ("cannot use the ?rule modifier", "take either the ? or the leading underscore away"),
    ("Nothing was imported", "write  %import library.NAME"),
    ("Template Parameter conflicts", "give the parameter a name that no rule has"),
    ("Duplicate Template Parameter", "give each parameter a name of its own"),
    ("isn't allowed to have aliases", "take the alias or the leading underscore away"),
    ("Rules defined twice", "two options read the same; keep one"),
)  # fmt: skip


def advised(message: str) -> str:
    """The message with its advice."""
    return next((f"{message}: {advice}" for part, advice in ADVICE if part in message), message)
