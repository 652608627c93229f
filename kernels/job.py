"""The layout of a job: what a compiled function of ``cpu_code`` is told, an array of 64-bit integers.

Addresses and strides are in bytes.
"""

from __future__ import annotations

from typing import Final

NEXT: Final = 0  # the next tile to take
TILES: Final = 1  # how many there are
TILES_PER_ROW: Final = 2
TILE: Final = 3  # tokens in a tile, a multiple of 2048
LOGITS: Final = 4  # address, stride of a row, stride of a token, number of tokens
LOGITS_ROW_STRIDE: Final = 5
LOGITS_TOKEN_STRIDE: Final = 6
TOKENS: Final = 7
MASK: Final = 8  # address, stride of a row, words in a row
MASK_ROW_STRIDE: Final = 9
WORDS: Final = 10
INDICES: Final = 11  # address of the logits' row of each mask row as int64, or 0
ROW_IDS: Final = 12  # address of the table's row of each mask row as int64, or 0
VALUE: Final = 13  # the bit pattern of minus infinity
BUDGET: Final = 14  # a call ends when it has written about as many lines of logits
FIELDS: Final = 15
