"""Colours of pixels as single numbers, which scripts compare."""

from __future__ import annotations

import numpy as np

from dtsn.arrays import Bytes, Ints


def pack_colours(frame: Bytes) -> Ints:
    """Make one number, 0xRRGGBB, of each pixel of a frame ``[3, 64, 64]``, ``[64, 64]``."""
    red, green, blue = frame.astype(np.int64)
    packed: Ints = red << 16 | green << 8 | blue
    return packed
