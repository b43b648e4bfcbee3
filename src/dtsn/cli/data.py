"""Data sets: look at one, exchange it with Minari, import the public Procgen data."""

from __future__ import annotations

from pathlib import Path

import tyro

from dtsn.cli.options import DATA
from dtsn.cli.terminal import console, done, pairs, progress
from dtsn.errors import UserError

MINARI_ID = "navigation/expert-v0"


def data_info(file: tyro.conf.Positional[Path] = DATA) -> None:
    """Show what a data set holds and compare every array with its checksum.

    Example: dtsn data info data/navigation.h5

    Args:
        file: a data set made by dtsn collect or dtsn data import.
    """
    from dtsn.data.format import PLAIN_ARRAYS
    from dtsn.data.reader import Dataset

    if file == DATA and not file.exists():
        raise UserError(f"{file}: no such file; dtsn collect makes it")
    if file.is_dir():
        inside = ", ".join(sorted(path.name for path in file.glob("*.h5"))) or "none"
        raise UserError(f"{file} is a folder: name a data set in it (.h5 files there: {inside})")
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
    done("nothing written", f"dtsn train {file}")


def data_export(
    file: tyro.conf.Positional[Path] = DATA, name: tyro.conf.Positional[str | None] = None
) -> None:
    """Write a data set to the local Minari folder, losslessly.

    Example: dtsn data export data/navigation.h5 navigation/expert-v0

    Args:
        file: a data set made by dtsn collect.
        name: name of the Minari data set to create; for Navigation's data navigation/expert-v0 if not given.
    """
    from dtsn.data import Dataset
    from dtsn.data.minari import export_minari

    with Dataset(file) as dataset:
        env_id = dataset.header["env_id"]
        if name is None and env_id != "dtsn/Navigation-v0":
            raise UserError(f"name must be given for data of {env_id}, such as mine/{file.stem}-v0, got none")
        name = name or MINARI_ID
        export_minari(dataset, name)
        count = dataset.num_episodes
    done(f"wrote {count} episodes to Minari as {name}", f"dtsn data import {name} copy.h5")


def data_import(
    name: tyro.conf.Positional[str] = MINARI_ID,
    out: tyro.conf.Positional[Path] = DATA,
    discount: float = 1.0,
    overwrite: bool = False,
) -> None:
    """Convert a local Minari data set (arrays, discrete actions) to a data set to train on.

    Example: dtsn data import navigation/expert-v0 data/imported.h5

    Args:
        name: name of the Minari data set; minari download gets published ones.
        out: the HDF5 file to write.
        discount: γ of the returns-to-go; the paper does not discount.
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
    """Convert gen_dgrl's public Procgen data, a folder of .npz files, to a data set to train on.

    Example: dtsn data import-dgrl 1M_E/coinrun data/coinrun.h5 --game coinrun

    Args:
        folder: folder with one .npz file per episode of one game.
        out: the HDF5 file to write.
        game: game of the files, which do not say it.
        mode: mode of the game; the public data are easy.
        episodes: number of first episodes to read; all if not given.
        discount: γ of the returns-to-go; the paper does not discount.
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
    """Say that a data set was written, with its size."""
    return f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)"
