"""Structural tags: fields checked (fields), formats to nodes (formats), tool-call styles (styles, cohere)."""
