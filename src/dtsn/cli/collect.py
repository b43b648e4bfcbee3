"""Data sets: play an expert and keep what it does, look at it, exchange it with others."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import tyro

from dtsn.cli.options import DATA, Device, Domain, Layout, at_least_one, pick_device
from dtsn.cli.terminal import console, done, pairs, progress, stopped
from dtsn.config import Keep
from dtsn.envs.navigation import NavigationOptions
from dtsn.processes import prepare

MINARI_ID = "navigation/expert-v0"


def collect(
    domain: tyro.conf.Positional[Domain] = "navigation",
    out: Path = DATA,
    episodes: int = 1000,
    exits: Literal[1, 2] = 2,
    exit_layout: Layout = "independent",
    discount: float = 1.0,
    seed: int = 0,
    overwrite: bool = False,
) -> None:
    """Play the expert and write its trajectories as a data set; dtsn collect procgen --help for Procgen.

    Example: dtsn collect navigation --episodes 1000 --out data/navigation.h5

    Args:
        domain: what to play; navigation is solved by value iteration.
        out: the HDF5 file to write.
        episodes: trajectories, each on a level of its own.
        exits: of the hall.
        exit_layout: exits anywhere on the hall's walls, or on opposite sides (harder for encoders that pool).
        discount: of the returns-to-go; the paper does not discount.
        seed: draws the levels and decides between equally short ways.
        overwrite: replace an existing file.
    """
    from dtsn.experts.collect import collect_navigation

    options = NavigationOptions(exits=exits, exit_layout=exit_layout)
    at_least_one(episodes=episodes)
    out.parent.mkdir(parents=True, exist_ok=True)
    with progress(f"collecting {episodes} {domain} episodes") as update:
        path = collect_navigation(
            out,
            episodes=episodes,
            options=options,
            seed=seed,
            discount=discount,
            overwrite=overwrite,
            progress=update,
        )
    done(wrote(path), training_command(path, "dtsn/Navigation-v0", discount=discount))


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
    """Play a Procgen game with a trained expert and write its successful episodes as a data set.

    Ctrl-C, or anything worse, loses nothing: the same command again goes on with the episodes that there are.

    Example: dtsn collect procgen --game coinrun --expert runs/expert-coinrun --episodes 1000

    Args:
        game: one of the 16 games.
        mode: easy, or hard as the paper's data; the one that the expert has learned.
        expert: a run folder of dtsn expert; runs/expert-GAME if not given.
        policy: the trained expert, its actions sampled; scripted, which there is for maze; or random.
        out: the HDF5 file to write; data/GAME.h5 if not given.
        episodes: to keep.
        keep: only episodes that completed their level, as the paper does, or all.
        num_levels: of the training levels to play on; 0: no limit.
        discount: of the returns-to-go; 1 as the paper says, 0.99 as its authors' script does.
        seed: draws the levels and the actions.
        overwrite: replace an existing file.
        device: auto takes CUDA where there is one.
        threads: small networks are fastest with one.
    """
    from dtsn.envs.procgen import ProcgenOptions
    from dtsn.experts import collect as collection
    from dtsn.experts.behaviour import BehaviourPolicy, scripted_expert
    from dtsn.experts.ppg import load_expert

    prepare(threads)
    options = ProcgenOptions(game, mode)
    out = out or Path("data") / f"{game}.h5"
    folder = expert or Path("runs") / f"expert-{game}"
    if policy == "expert" and not folder.exists():
        raise ValueError(
            f"{folder}: no such folder; dtsn expert procgen --game {game} --mode {mode} trains one"
        )
    player: BehaviourPolicy | None = None
    if policy == "expert":
        player = load_expert(folder, pick_device(device))
    elif policy == "scripted":
        player = scripted_expert(options)
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
            stopped("\nstopped; the episodes so far are kept", "the same command again goes on")
    done(wrote(out), training_command(out, "dtsn/Procgen-v0", discount=discount))


def data() -> None:
    """Look at a data set, or exchange it with others: info, export, import, import-dgrl.

    Example: dtsn data info data/navigation.h5
    """


def data_info(file: tyro.conf.Positional[Path] = DATA) -> None:
    """Show what a data set holds and compare every array with its checksum.

    Example: dtsn data info data/navigation.h5

    Args:
        file: a data set made by dtsn collect or dtsn data import.
    """
    from dtsn.data.format import PLAIN_ARRAYS
    from dtsn.data.reader import Dataset

    if file == DATA and not file.exists():
        raise ValueError(f"{file}: no such file; dtsn collect makes it")
    with Dataset(file) as dataset:
        info = dataset.info()
        shapes = {name: (dtype, dataset.array(name).shape) for name, dtype in PLAIN_ARRAYS.items()}
        frames = (dataset.num_transitions + dataset.num_episodes, *dataset.observation_shape)
    shapes["observations"] = (str(dataset.observation_dtype), frames)
    rows: list[tuple[str, object]] = []
    for name, value in info.items():
        spread = isinstance(value, dict) and set(value) == {"min", "mean", "max"}
        shown = f"{value['min']:g} to {value['max']:g}, mean {value['mean']:.2f}" if spread else value
        rows.append((name.replace("_", " "), shown))
    console().print(pairs(rows))
    checked = [(name, f"{list(shape)} {dtype}, checksum right") for name, (dtype, shape) in shapes.items()]
    console().print(pairs(checked, title="arrays"))
    done(
        "nothing written",
        training_command(file, str(info["env_id"]), dataset.observation_shape, float(info["discount"])),
    )


def training_command(file: Path, env_id: str, shape: tuple[int, ...] = (), discount: float = 1.0) -> str:
    """How to train on a data set."""
    command = f"dtsn train --data {file}"
    if env_id == "dtsn/Procgen-v0":
        command = f"dtsn train procgen --data {file}"
    elif env_id != "dtsn/Navigation-v0":
        encoder = "mlp" if len(shape) == 1 else "impala"
        command += f" --network.encoder {encoder} --augment none"
    return command if discount == 1 else f"{command} --solver.discount {discount:g}"


def data_export(file: tyro.conf.Positional[Path] = DATA, name: tyro.conf.Positional[str] = MINARI_ID) -> None:
    """Write a data set to the local Minari folder, losslessly.

    Example: dtsn data export data/navigation.h5 navigation/expert-v0

    Args:
        file: a data set made by dtsn collect.
        name: of the Minari data set, which must not exist.
    """
    from dtsn.data.minari import export_minari
    from dtsn.data.reader import Dataset

    with Dataset(file) as dataset:
        export_minari(dataset, name)
        count = dataset.num_episodes
    done(f"wrote {count} episodes to Minari as {name}", f"dtsn data import {name} copy.h5")


def data_import(
    name: tyro.conf.Positional[str] = MINARI_ID,
    out: tyro.conf.Positional[Path] = DATA,
    discount: float = 1.0,
    overwrite: bool = False,
) -> None:
    """Write a local Minari data set (arrays, discrete actions) as a data set to train on.

    Example: dtsn data import navigation/expert-v0 data/imported.h5

    Args:
        name: of the Minari data set; minari download gets published ones.
        out: the HDF5 file to write.
        discount: of the returns-to-go; the paper does not discount.
        overwrite: replace an existing file.
    """
    from dtsn.data.minari import import_minari

    import_minari(name, out, discount=discount, overwrite=overwrite)
    done(wrote(out), f"dtsn data info {out}")


def data_import_dgrl(
    folder: tyro.conf.Positional[Path],
    out: tyro.conf.Positional[Path],
    game: str = "coinrun",
    mode: str = "easy",
    episodes: int | None = None,
    discount: float = 1.0,
    overwrite: bool = False,
) -> None:
    """Write the public offline Procgen data of gen_dgrl, a folder of .npz files, as a data set to train on.

    Example: dtsn data import-dgrl 1M_E/coinrun data/coinrun.h5 --game coinrun

    Args:
        folder: with an .npz file for each episode of one game.
        out: the HDF5 file to write.
        game: that the files are of; they do not say it.
        mode: of the game; the public data are of mode easy.
        episodes: the first ones only.
        discount: of the returns-to-go; the paper does not discount.
        overwrite: replace an existing file.
    """
    from dtsn.data.dgrl import import_dgrl
    from dtsn.envs.procgen import ProcgenOptions

    options = ProcgenOptions(game, mode)
    with progress(f"importing {folder}") as update:
        import_dgrl(
            folder,
            out,
            options,
            episodes=episodes,
            discount=discount,
            overwrite=overwrite,
            progress=update,
        )
    done(wrote(out), f"dtsn data info {out}")


def wrote(path: Path) -> str:
    """A data set that was written, with its size."""
    return f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)"
