"""What tests/test_ranks.py lets torchrun start: every process writes what it saw."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from dtsn.config import SOLVERS, LossWeights, NetworkConfig, SolverConfig, TrainConfig
from dtsn.data.reader import Dataset
from dtsn.errors import UserError
from dtsn.reproduce.navigation.variants import NAVIGATION
from dtsn.solvers.losses import LossTerms
from dtsn.training.loop import train_run
from dtsn.training.ranks import PeerError, joined
from dtsn.training.trainer import DivergedError, Trainer

STEPS = 6
SHORT: dict[str, Any] = {
    "steps": STEPS,
    "batch_size": 7,  # no multiple of the processes
    "learning_rate_warmup": 2,
    "search_warmup": 2,
    "search_ramp": 2,
    "conservative_ramp": 2,
    "checkpoint_every": 4,
}
TINY = TrainConfig(network=NetworkConfig(encoder="grid", latent=8, hidden=8), **SHORT)
CONFIGS = {
    **{name: replace(TINY, solver=SolverConfig(name, iterations=3)) for name in SOLVERS},
    "maps": replace(NAVIGATION, **SHORT, solver=replace(NAVIGATION.solver, iterations=3)),
    # A head that gets no gradient.
    "unused": replace(
        NAVIGATION, **SHORT, solver=SolverConfig("qnet", weights=LossWeights(termination=0, reward=0))
    ),
}


class Spoilt(Trainer):
    """The second process has a NaN in its loss at some steps."""

    bad_steps: tuple[int, ...] = ()

    def _backward(self, batch: Any, **settings: Any) -> dict[str, float]:
        solver, whole = self.solver, type(self.solver).loss

        def loss(*args: Any, **kwargs: Any) -> LossTerms:
            found = whole(solver, *args, **kwargs)
            bad = self.ranks.rank == 1 and self.step in self.bad_steps
            return LossTerms(found.total * torch.nan, found.terms) if bad else found

        solver.loss = loss  # type: ignore[method-assign]
        return super()._backward(batch, **settings)


def main(data: str, out: Path) -> None:
    torch.set_num_threads(1)
    said: dict[str, Any] = {}
    with joined("cpu") as ranks, Dataset(Path(data)) as dataset:

        def make(config: TrainConfig, kind: type[Trainer] = Trainer) -> Trainer:
            return kind(config, dataset.observation, dataset.num_actions, ranks=ranks)

        for name, config in CONFIGS.items():
            trainer = make(config)
            said[name] = [metrics["loss"] for metrics in train_run(out / name, trainer, dataset)]
            save_file(dict(trainer.solver.state_dict()), out / f"{name}-{ranks.rank}.safetensors")

        trainer = make(replace(TINY, on_nan="skip"), Spoilt)
        trainer.bad_steps = (2, 3)  # type: ignore[attr-defined]
        said["skipped"] = [metrics.get("skipped", 0) for metrics in train_run(out / "skip", trainer, dataset)]

        trainer = make(TINY, Spoilt)
        trainer.bad_steps = (3,)  # type: ignore[attr-defined]
        try:
            list(train_run(out / "stop", trainer, dataset))
        except DivergedError as error:
            said["diverged"] = [trainer.step, str(error)]

        try:  # an agreement to stop reaches all, whoever was asked
            steps = train_run(out / "interrupt", make(TINY), dataset)
            for metrics in steps:
                if metrics["step"] == 3 and ranks.rank == 1:
                    ranks._asked = True
        except KeyboardInterrupt:
            said["interrupted"] = metrics["step"]
        ranks._asked = ranks.stopping = False

        try:
            make(replace(TINY, batch_size=1))
        except UserError as error:
            said["too small"] = str(error)

        try:
            other = replace(TINY, seed=ranks.rank)
            list(train_run(out / "other", make(other), dataset))
        except UserError as error:
            said["other"] = [isinstance(error, PeerError), str(error)]
        (out / f"said-{ranks.rank}.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
