"""The texts that Lark's LALR parser with its contextual lexer takes, one step a module.

productions (Lark's own compiler), tables (LALR(1) states), patterns and scanner (what a lexer matches),
watches (what may not follow a token), contexts (all of it as grammar rules), merge (equal rules once).
"""
