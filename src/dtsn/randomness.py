"""Counter-based random numbers: what one episode draws never depends on the others of its batch."""

import numpy as np
from numpy.typing import NDArray

from dtsn.arrays import Float64s, Ints


def hashed_integers(seeds: Ints, number: int, below: int) -> Ints:
    """Draw `number` of every seed, [L], uniform over 0 .. below - 1.

    SplitMix64 as a counter-based generator: a draw depends on its seed and number alone, so a level is the
    same in every batch. The seeds are mixed first, lest related seeds share one stream with an offset.
    """
    u64, gamma = np.uint64, 0x9E3779B97F4A7C15

    def mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
        z = (z ^ (z >> u64(30))) * u64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> u64(27))) * u64(0x94D049BB133111EB)
        return z ^ (z >> u64(31))

    stream = mix(seeds.astype(u64) + u64(gamma))
    bits = mix(stream + u64((number + 1) * gamma % 2**64))
    return (bits % u64(below)).astype(np.int64)  # the bias of the modulo, below / 2^64, is negligible


def hashed_uniforms(seed: int, episodes: Ints, steps: Ints) -> Float64s:
    """Return a number in [0, 1) for each row ``[B]``, by (seed, episode, step) alone."""
    streams = hashed_integers(np.asarray(episodes), seed, 2**62)
    return hashed_integers(streams + steps, 0, 2**53) / 2**53
