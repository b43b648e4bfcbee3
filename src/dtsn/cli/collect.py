"""Play an expert and write its trajectories as a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from dtsn.cli.data import wrote
from dtsn.cli.options import DATA, Device, Layout, at_least_one, pick_device
from dtsn.cli.terminal import done, progress, stopped
from dtsn.config import Keep
from dtsn.envs.navigation import NavigationOptions
from dtsn.errors import UserError
from dtsn.processes import prepare


def collect_navigation(
    out: Path = DATA,
    episodes: int = 1000,
    exits: Literal[1, 2] = 2,
    exit_layout: Layout = "opposite",
    discount: float = 1.0,
    seed: int = 0,
    overwrite: bool = False,
) -> None:
    """Collect expert trajectories: value iteration on Navigation.

    Example: dtsn collect navigation --episodes 1000 --out data/navigation.h5

    Args:
        out: the HDF5 file to write.
        episodes: trajectories, each on a level of its own.
        exits: number of exits of each hall.
        exit_layout: exits anywhere on the hall's walls, or on opposite sides.
        discount: γ of the returns-to-go; the paper does not discount.
        seed: draws the levels and breaks ties between equally short paths.
        overwrite: replace an existing file.
    """
    from dtsn.experts import collect as collection

    options = NavigationOptions(exits=exits, exit_layout=exit_layout)
    at_least_one(episodes=episodes)
    out.parent.mkdir(parents=True, exist_ok=True)
    with progress(f"collecting {episodes} navigation episodes") as update:
        path = collection.collect_navigation(
            out,
            episodes=episodes,
            options=options,
            seed=seed,
            discount=discount,
            overwrite=overwrite,
            progress=update,
        )
    done(wrote(path), f"dtsn train {path}")


def collect_procgen(
    game: str = "coinrun",
    mode: str = "easy",
    expert: Path | None = None,
    policy: Literal["expert", "scripted", "random"] = "expert",
    out: Path | None = None,
    episodes: int = 1000,
    keep: Keep = "successful",
    num_levels: int = 0,
    discount: float = 1.0,
    seed: int = 0,
    overwrite: bool = False,
    device: Device = "auto",
    threads: int = 1,
) -> None:
    """Collect successful episodes of a trained expert on a Procgen game.

    Safe to interrupt: rerun the same command to continue.

    Example: dtsn collect procgen --game coinrun --expert runs/expert-coinrun --episodes 1000

    Args:
        game: one of the 16 games.
        mode: easy, or hard as the paper's data; the one that the expert has learned.
        expert: run folder of dtsn expert; runs/expert-GAME if not given.
        policy: the trained expert's, a script's (bigfish, climber, heist, leaper, maze, miner, plunder), or
            random.
        out: the HDF5 file to write; data/GAME.h5 if not given.
        episodes: number of episodes to keep.
        keep: keep episodes that completed their level, as the paper does, or all.
        num_levels: number of training levels to play on; 0: no limit.
        discount: γ of the returns-to-go; 1 as the paper says, 0.99 as its authors' script does.
        seed: draws the levels and the actions.
        overwrite: replace an existing file.
        device: where to run; auto takes CUDA where there is one.
        threads: CPU threads; small networks are fastest with one.
    """
    from dtsn.envs.procgen import ProcgenOptions
    from dtsn.experts import collect as collection
    from dtsn.experts.behaviour import BehaviourPolicy
    from dtsn.experts.ppg_policy import load_expert
    from dtsn.experts.scripted import ScriptedExpert

    prepare(threads)
    options = ProcgenOptions(game, mode)
    out = out or Path("data") / f"{game}.h5"
    folder = expert or Path("runs") / f"expert-{game}"
    if policy == "expert" and not folder.exists():
        raise UserError(
            f"{folder}: no such folder; dtsn expert procgen --game {game} --mode {mode} trains one"
        )
    player: BehaviourPolicy | None = None
    if policy == "expert":
        player = load_expert(folder, pick_device(device))
    elif policy == "scripted":
        player = ScriptedExpert(options)
    with progress(f"collecting {episodes} {game} episodes") as update:
        try:
            collection.collect_procgen(
                out,
                options,
                player,
                episodes=episodes,
                keep=keep,
                num_levels=num_levels,
                seed=seed,
                discount=discount,
                overwrite=overwrite,
                progress=update,
            )
        except KeyboardInterrupt:
            stopped("\nstopped; the episodes so far are kept", "rerun the same command to continue")
    done(wrote(out), f"dtsn train {out}")
