"""How long real captions are: those of COCO 2017, val (annotations/captions_val2017.json of
https://cocodataset.org; the annotations are under CC BY 4.0), of 5,000 images. A length is the
number of words and punctuation marks, what the regular expression \\w+|[^\\w\\s] matches, which is
about what a tokenizer makes of plain English."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

CAPTIONS_OF_LENGTH = {
    7: 112,
    8: 1243,
    9: 4258,
    10: 5188,
    11: 4749,
    12: 3553,
    13: 2263,
    14: 1436,
    15: 816,
    16: 492,
    17: 292,
    18: 194,
    19: 120,
    20: 80,
    21: 52,
    22: 36,
    23: 25,
    24: 22,
    25: 22,
    26: 21,
    27: 12,
    28: 3,
    29: 2,
    30: 4,
    31: 2,
    32: 5,
    33: 1,
    34: 1,
    35: 1,
    36: 1,
    38: 2,
    40: 1,
    42: 1,
    43: 1,
    48: 1,
    49: 1,
    54: 1,
}


def caption_lengths() -> npt.NDArray[np.int64]:
    """(25014,): of all captions, in an order drawn once."""
    lengths = np.repeat(list(CAPTIONS_OF_LENGTH), list(CAPTIONS_OF_LENGTH.values()))
    return np.random.default_rng(0).permutation(lengths).astype(np.int64)
