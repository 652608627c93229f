"""EBNF of xgrammar and llama.cpp, one step a module: lexer, parser, macros, attributes."""
