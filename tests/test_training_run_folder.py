"""What a run's folder holds, whose it is, and what it is refused for."""

from __future__ import annotations

import json
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from dtsn.checkpoint import checkpoints, load_state, load_tensors_of
from dtsn.config import TrainConfig
from dtsn.data.reader import Dataset
from dtsn.errors import UserError
from dtsn.settings import config_from_dict
from dtsn.storage import RunInUseError
from dtsn.training.loop import train_run
from dtsn.training.runs import RunError, RunFolder, read_metrics
from short_runs import CONFIG, QNET, STEPS, Whole, contents, make, of, train
from short_runs import dataset as dataset
from short_runs import started as started
from short_runs import whole as whole


def test_run_folder(whole: Whole) -> None:
    run = whole("dtsn")
    rows = read_metrics(run / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    terms = {"q", "cql", "transition", "reward", "expansion"}
    assert set(rows[0]) == terms | {"step", "loss", "gradient", "learning_rate"}
    assert [path.name for path in checkpoints(run / "checkpoints")] == ["step-6", "step-8"]
    config = json.loads((run / "config.json").read_bytes())
    assert config["env"]["id"] == "dtsn/Navigation-v0"
    assert config["env"]["options"]["exits"] == 2
    del config["dtsn"], config["data"], config["env"]
    assert config_from_dict(TrainConfig, config) == CONFIG
    model = load_tensors_of(run / "checkpoints/step-8", "model", load_state(run / "checkpoints/step-8"))
    assert any(key.startswith("target_encoder.") for key in model)


def test_run_folder_is_not_overwritten(dataset: Dataset, whole: Whole) -> None:
    run = whole("qnet")
    before = contents(run)
    with pytest.raises(FileExistsError, match="already has a training run: resume it"):
        train(run, dataset, of("qnet"))
    assert contents(run) == before


def test_what_a_run_was_trained_on(whole: Whole, tmp_path: Path) -> None:
    run = whole("dtsn")
    for folder in (run, run / "checkpoints/step-8"):
        trained = RunFolder.of(folder).environment()
        assert trained is not None
        assert trained.id == "dtsn/Navigation-v0"
        assert trained.options["exits"] == 2
    assert RunFolder(tmp_path).environment() is None
    for said in ("[]", "{", '{"env": []}', '{"env": {"id": 3, "options": {}}}', '{"a": NaN}', "[" * 10**5):
        (tmp_path / "config.json").write_text(said)
        with pytest.raises(RunError, match=re.escape(str(tmp_path / "config.json"))):
            RunFolder(tmp_path).environment()


BAD_LINES = [b"[]", b"null", b'"a"', b'{"loss": 1}', b'{"step": "1"}', b'{"step": 1, "loss": "x"}',
             b"\xff\xfe", b"[" * 50_000, b'{"step": true}', b'{"step": -1}', b'{"step": 1e400}',
             b"\0" * 100]  # fmt: skip


@pytest.mark.parametrize("line", BAD_LINES, ids=lambda line: repr(line[:20]))
def test_a_log_that_is_none(line: bytes, dataset: Dataset, started: Path, tmp_path: Path) -> None:
    shutil.copytree(started, tmp_path / "run")
    log = tmp_path / "run/metrics.jsonl"
    before = log.read_bytes()
    log.write_bytes(line + b"\n" + before)
    for read in (RunFolder(tmp_path / "run").metrics, lambda: train(log.parent, dataset, QNET, resume=True)):
        with pytest.raises(RunError, match=rf"{re.escape(str(log))} line 1 must be a JSON object of numbers"):
            read()
    log.write_bytes(before + line)  # half-written: a line ends with a line break
    train(log.parent, dataset, QNET, resume=True)


LINKED = [".lock", "metrics.jsonl", "config.json", "checkpoints", "tensorboard"]


@pytest.mark.parametrize("name", LINKED)
def test_nothing_is_written_through_links(name: str, dataset: Dataset, started: Path, tmp_path: Path) -> None:
    run, outside = tmp_path / "run", tmp_path / "outside"
    shutil.copytree(started, run)
    target = outside / name
    if (run / name).is_dir():
        shutil.move(run / name, target)
    else:
        outside.mkdir()
        target.write_bytes((run / name).read_bytes() if (run / name).exists() else b'{"step": 99}')
        (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(target)
    before = contents(outside)
    with suppress(UserError, OSError):
        train(run, dataset, QNET, resume=True, track="tensorboard" if name == "tensorboard" else "none")
    assert contents(outside) == before


def test_a_folder_is_one_run_at_a_time(dataset: Dataset, tmp_path: Path) -> None:
    steps = train_run(tmp_path, make(dataset, QNET), dataset)
    next(steps)
    with pytest.raises(RunInUseError, match=rf"{tmp_path} is in use by process {os.getpid()} on .* since 2"):
        train_run(tmp_path, make(dataset, QNET), dataset, resume=True)
    steps.close()  # type: ignore[attr-defined]
    assert not (tmp_path / ".lock").exists()
    (tmp_path / ".lock").write_text('{"pid": 1}')  # of a process that was killed
    train(tmp_path, dataset, QNET, resume=True)
    assert not (tmp_path / ".lock").exists()
