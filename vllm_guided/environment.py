"""Numbers that a user sets by environment variables."""

from __future__ import annotations

import functools
import logging
import math
import os

logger = logging.getLogger("vllm.vllm_guided")


def number(name: str, default: float, *, least: float, most: float) -> float:
    """The number that the variable ``name`` holds, at least ``least`` and at most ``most``.

    ``inf`` is the most there may be. Where it holds no number, ``default`` is used, and the log says so once.
    """
    return _read(name, os.environ.get(name, "").strip(), default, least, most)


@functools.lru_cache(maxsize=64)
def _read(name: str, text: str, default: float, least: float, most: float) -> float:
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        logger.warning("%s must be a number, not %r; %g is used.", name, text, default)
        return default
    return min(max(value, least), most)
