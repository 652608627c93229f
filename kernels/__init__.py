"""Kernels that apply packed token masks to logits, on the CPU (numba) and on GPUs (Triton).

Importing this package imports neither torch nor numba nor Triton; the first call does.
"""

from __future__ import annotations

from .apply import apply_token_bitmask_inplace, apply_token_bitmask_table_inplace, warmup

__all__ = ["apply_token_bitmask_inplace", "apply_token_bitmask_table_inplace", "warmup"]
