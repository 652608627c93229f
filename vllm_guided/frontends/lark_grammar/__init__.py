"""Lark grammars, one step a module: dialect, loader, terminals, skips, lexemes, rules."""
