"""Structured output for vLLM: sound, complete masks for JSON Schema, regex, choice and grammars."""
