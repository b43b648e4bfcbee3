"""Tree search in latent space for a whole batch at once: best-first (D-TSN) and full (TreeQN).

The unit of work is the *expansion*: all A actions of one node per batch row. A search of T expansions
fills N = 1 + T·A slots by one rule (:mod:`dtsn.search.slots`), and nothing is allocated while searching but
what the model returns.

The world is deterministic and returns add up, so the Bellman backup of a partial tree is a maximum
over its leaves: ``Q_t(a) = max of V̄(n) over the leaves n of τ_t below root action a``, where ``V̄`` is
the path value that the expansion policy needs anyway. All Q-values and log-probabilities are functions
of the one table ``V̄ [B, N]``; see docs/design.md for the proof.
"""

from dtsn.search.best_first import best_first_search
from dtsn.search.full import full_expansion
from dtsn.search.model import Expansion, LatentModel
from dtsn.search.selection import Choose, Replay
from dtsn.search.tree import SearchTree

__all__ = [
    "Choose",
    "Expansion",
    "LatentModel",
    "Replay",
    "SearchTree",
    "best_first_search",
    "full_expansion",
]
