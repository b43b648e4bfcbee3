"""A local web page that shows how a trained solver searches: ``dtsn view`` (needs ``dtsn[viewer]``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from dtsn.errors import UserError

if TYPE_CHECKING:
    import gymnasium
    import torch

    from dtsn.solvers.solver import Solver
    from dtsn.viewer.replay import Render

__all__ = ["show"]


def show(
    solvers: Solver | Mapping[str, Solver],
    env: gymnasium.Env,
    *,
    render: Render | None = None,
    actions: Sequence[str] | None = None,
    label: Callable[[torch.Tensor], str] | None = None,
    host: str = "127.0.0.1",
    port: int = 8765,
    ready: Callable[[str], None] = print,
) -> None:
    """Show how solvers search in an environment of your own: a local web page, until Ctrl-C.

    Episodes are replayed for every answer, so ``env.reset(seed=...)`` and the actions must decide them. A
    bool or 0/1 ``action_mask [A]`` in the environment's info closes actions.

    Args:
        solvers: one solver, or several by name to compare.
        env: with discrete actions; the level on the page is the seed of ``env.reset``.
        render: ``env -> picture [H, W, 3]`` (uint8), the text of an SVG, other text, or None; by default what
            ``env.render()`` returns if its render mode is ``rgb_array`` or ``ansi``.
        actions: names of the A actions.
        label: names states by their latents ``[...]``, for world models whose latents mean something.
        host: address to listen on; the default is reachable from this machine only.
        port: to listen on; 0 takes a free one.
        ready: called with the address once the server listens.
    """
    from dtsn.viewer.library import Library, Shown
    from dtsn.viewer.replay import GymWorld
    from dtsn.viewer.server import serve

    world = GymWorld(env, render=render, actions=actions, label=label)
    named = dict(solvers) if isinstance(solvers, Mapping) else {solvers.kind.title: solvers}
    for name, solver in named.items():
        if solver.world_model.num_actions != len(world.actions):
            counts = f"{len(world.actions)} actions as env has, got {solver.world_model.num_actions}"
            raise UserError(f"solver {name!r} must have {counts}")
    library = Library(given={name: Shown(solver.eval(), world) for name, solver in named.items()})
    serve(library, host, port, ready)
