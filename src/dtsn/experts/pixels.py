"""Colours of pixels as single numbers, which scripted experts compare."""

from __future__ import annotations

import numpy as np

from dtsn.arrays import Bytes, Ints


def pack_colours(frames: Bytes) -> Ints:
    """Make one number, 0xRRGGBB, of each pixel of frames ``[B, 3, 64, 64]``, ``[B, 64, 64]``."""
    red, green, blue = frames.astype(np.int64).transpose(1, 0, 2, 3)
    packed: Ints = red << 16 | green << 8 | blue
    return packed
