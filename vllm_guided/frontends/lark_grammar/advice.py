"""What to write instead, for each of the complaints that Lark's own loader makes.

In: Lark's message. Out: the message with what to do behind it. The table names a complaint by a part of it.
"""

from __future__ import annotations

import re

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
    ("the end of the line is not expected", "close ( and [ before it, or go on in the next line with |"),
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


SIGNS = {
    ";": "a definition ends with its line, without a sign; leave it out",
    ",": "parts of a sequence stand side by side; leave the comma out",
    "'": "a string stands in double quotes, not in single ones",
    "=": "a rule is written  name: ...",
}
"""What stands in grammars of other languages, and not in Lark's."""


def advised(message: str, sign: str = "") -> str:
    """The message with its advice; ``sign`` is the character that it is about, if it is about one."""
    if sign in SIGNS:
        return f"{message}: {SIGNS[sign]}"
    if match := re.search(r"'(\w-\w)' used but not defined", message):
        return f"{message}: a class of characters is written  /[{match[1]}]/"
    return next((f"{message}: {advice}" for part, advice in ADVICE if part in message), message)
