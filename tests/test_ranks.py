"""Several processes train one run: they end where one does, and skip, stop and go on together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dtsn.batch import Part
from dtsn.checkpoint import latest_checkpoint, load_state, load_tensors_of
from dtsn.config import SOLVERS, TrainConfig
from dtsn.data.reader import Dataset
from dtsn.errors import UserError
from dtsn.experts.collect import collect_navigation
from dtsn.reproduce.navigation.variants import NAVIGATION
from dtsn.training.loop import train_run
from dtsn.training.ranks import SIGNALS, Ranks, joined
from dtsn.training.runs import read_metrics
from dtsn.training.trainer import Trainer
from ranks_worker import CONFIGS, STEPS

CLOSE = 1e-6  # weights of several processes against those of one: sums of gradients are rounded otherwise
DRIFT = 1e-5  # where the number of steps depends on the machine
LONG = replace(
    NAVIGATION,
    solver=replace(NAVIGATION.solver, iterations=2),
    steps=100_000,
    batch_size=4,
    checkpoint_every=50_000,
)
FLAGS = ["--solver.iterations", 2, "--steps", 100_000, "--batch-size", 4, "--checkpoint-every", 50_000]


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return collect_navigation(tmp_path_factory.mktemp("ranks") / "data.h5", episodes=10)


@contextmanager
def torchrun(*words: object, processes: int = 2) -> Iterator[subprocess.Popen[str]]:
    """Start processes; whatever happens, they are gone afterwards."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", processes]
    started = subprocess.Popen(
        [*map(str, command), *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        start_new_session=True,
    )
    try:
        yield started
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def by_one(data: Path, config: TrainConfig, steps: int) -> dict[str, torch.Tensor]:
    """The weights that one process has after some steps."""
    with Dataset(data) as dataset:
        trainer = Trainer(config, dataset.observation, dataset.num_actions)
        for metrics in trainer.run(dataset):
            if metrics["step"] == steps:
                break
    return dict(trainer.solver.state_dict())


def difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert set(one) == set(other)
    return max(float((one[name] - other[name]).abs().max()) for name in one)


# --- without processes -------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [4, 7, 11])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_parts_are_all_rows_once(rows: int, count: int) -> None:
    parts = [Ranks(rank, count).part(rows) for rank in range(count)]
    assert [row for part in parts for row in range(part.first, part.end)] == list(range(rows))
    assert max(part.end - part.first for part in parts) - min(part.end - part.first for part in parts) <= 1


def test_fewer_rows_than_processes() -> None:
    with pytest.raises(UserError, match="batch_size must be at least 4, a row for each process, got 3"):
        Ranks(0, 4).part(3)


@pytest.mark.parametrize("name", [*SOLVERS, "maps"])
def test_losses_of_parts_are_those_of_the_whole(name: str, data: Path) -> None:
    # What is drawn for a row must not depend on who works on it.
    config = CONFIGS[name]
    with Dataset(data) as dataset:
        trainer = Trainer(config, dataset.observation, dataset.num_actions)
        batch = next(dataset.batches(7, 0))
    whole = trainer.solver.loss(batch, generator=torch.Generator().manual_seed(1))
    parts = [Part(0, 3, 7), Part(3, 7, 7)]
    found = [
        trainer.solver.loss(batch.part(part), generator=torch.Generator().manual_seed(1), part=part)
        for part in parts
    ]
    for term, values in whole.terms.items():
        torch.testing.assert_close(torch.cat([each.terms[term] for each in found]), values)
    mean = (3 * found[0].total + 4 * found[1].total) / 7
    torch.testing.assert_close(mean, whole.total)


def test_a_signal_interrupts_only_where_nobody_waits() -> None:
    ranks, before = Ranks(), {each: signal.getsignal(each) for each in SIGNALS}
    try:
        ranks.hold_signals()
        signal.raise_signal(signal.SIGTERM)  # asks for a stop after the step
        with pytest.raises(KeyboardInterrupt), ranks.interruptible():
            pytest.fail("asked already")
        ranks = Ranks()
        ranks.hold_signals()
        with pytest.raises(KeyboardInterrupt), ranks.interruptible():
            signal.raise_signal(signal.SIGINT)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def test_devices_of_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    with joined("mps") as ranks:  # alone, any will do
        assert (ranks.count, ranks.device) == (1, "mps")
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "here", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    refused = "device must be cpu or cuda where several processes train, got 'cuda:1'"
    with pytest.raises(UserError, match=refused), joined("cuda:1"):
        pass
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UserError, match="must be at most its GPUs, 1, got more"), joined("cuda"):
        pass


# --- with them ---------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def together(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes of tests/ranks_worker.py wrote."""
    out = tmp_path_factory.mktemp("together")
    with torchrun(Path(__file__).with_name("ranks_worker.py"), data, out) as started:
        output, _ = started.communicate(timeout=600)
    assert started.returncode == 0, output
    assert "Warning" not in output
    return out


def said(together: Path, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((together / f"said-{rank}.json").read_text())
    return found


@pytest.mark.parametrize("name", CONFIGS)
def test_two_processes_end_where_one_does(name: str, data: Path, together: Path) -> None:
    first, second = (load_file(together / f"{name}-{rank}.safetensors") for rank in range(2))
    assert difference(first, second) == 0
    assert difference(first, by_one(data, CONFIGS[name], STEPS)) <= CLOSE
    assert said(together, 0)[name] == said(together, 1)[name]
    assert [path.name for path in sorted((together / name / "checkpoints").iterdir())] == ["step-4", "step-6"]


def test_a_step_is_skipped_by_all_or_none(together: Path) -> None:
    assert said(together, 0)["skipped"] == said(together, 1)["skipped"] == [0, 0, 1, 1, 0, 0]
    kept = sorted((together / "skip" / "diverged").iterdir())
    assert [path.name for path in kept] == ["step-3.safetensors", "step-4.safetensors"]
    assert len(load_file(kept[0])["action"]) == 7  # the rows of all


def test_a_nan_in_one_process_stops_all(together: Path) -> None:
    for rank in range(2):
        step, message = said(together, rank)["diverged"]
        assert (step, message.partition(";")[0]) == (3, "step 4: loss nan, gradient norm nan")


def test_all_stop_after_the_same_step(together: Path) -> None:
    assert said(together, 0)["interrupted"] == said(together, 1)["interrupted"] == 4
    assert latest_checkpoint(together / "interrupt/checkpoints") == together / "interrupt/checkpoints/step-4"


def test_processes_must_agree_on_settings(together: Path) -> None:
    refused, message = said(together, 1)["other"]
    assert (refused, message.partition(": ")[2]) == (False, "config.seed is 1, not 0")
    assert said(together, 0)["other"][0]  # its peer is gone
    assert "at least 2, a row for each process, got 1" in said(together, 0)["too small"]


def worker(launcher: int, rank: int) -> int:
    """The process id of a rank that torchrun started."""
    for pid in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        if f"\0RANK={rank}\0" in Path(f"/proc/{pid}/environ").read_text():
            return int(pid)
    raise AssertionError(f"no process of rank {rank}")


def wait_for_steps(run: Path, steps: int) -> None:
    until = time.monotonic() + 600
    while len(read_metrics(run / "metrics.jsonl")) < steps:
        assert time.monotonic() < until, "no steps are made"
        time.sleep(0.05)


def saved(run: Path) -> tuple[int, dict[str, torch.Tensor]]:
    """The newest checkpoint, which must be of the last logged step."""
    newest = latest_checkpoint(run / "checkpoints")
    assert newest is not None
    state = load_state(newest)
    assert read_metrics(run / "metrics.jsonl")[-1]["step"] == state["step"]
    return int(state["step"]), load_tensors_of(newest, "model", state)


def test_killed_stopped_and_resumed_by_other_numbers_of_processes(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train = ("-m", "--", "dtsn", "train", data, "--run", run, "--device", "cpu", *FLAGS)
    with torchrun(*train) as started:
        wait_for_steps(run, 5)
        os.kill(worker(started.pid, 1), signal.SIGKILL)
        output, _ = started.communicate(timeout=600)
    assert started.returncode != 0
    assert output.count("dtsn: another process of this run has ended") == 1
    assert "Traceback" not in output.partition("torch/distributed")[0]
    step, weights = saved(run)
    assert difference(weights, by_one(data, LONG, step)) <= DRIFT

    with Dataset(data) as dataset:  # one process goes on
        trainer = Trainer(LONG, dataset.observation, dataset.num_actions)
        steps = train_run(run, trainer, dataset, resume=True)
        for metrics in steps:
            if metrics["step"] == step + 5:
                steps.close()
    step, _ = saved(run)

    with torchrun(*train, "--resume") as started:  # and two again
        wait_for_steps(run, step + 5)
        started.terminate()
        output, _ = started.communicate(timeout=600)
    assert output.count("checkpoint saved") == 1
    assert "resume" in output
    last, weights = saved(run)
    assert last >= step + 5
    assert difference(weights, by_one(data, LONG, last)) <= DRIFT
