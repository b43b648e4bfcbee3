"""A checkpoint gives back exactly what was saved, or an error that names the file; never something else."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import re
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dtsn import checkpoint
from dtsn.checkpoint import (
    MAX_STATE_BYTES,
    CheckpointError,
    best_checkpoint,
    checkpoints,
    flatten_optimizer,
    latest_checkpoint,
    load_state,
    load_tensors_of,
    prune_checkpoints,
    restore_optimizer,
    save_checkpoint,
)
from dtsn.storage import replace_durably

FILES = ("model.safetensors", "optimizer.safetensors", "state.json")
each_file = pytest.mark.parametrize("name", FILES)


def tensors(step: int) -> dict[str, dict[str, Tensor]]:
    rng = torch.Generator().manual_seed(step)
    model = {"encoder.weight": torch.randn(5, 3, generator=rng).T, "encoder.bias": torch.zeros(0, 3)}
    optimizer = {"0.step": torch.tensor(float(step)), "0.exp_avg": torch.randn(3, 5, generator=rng)}
    return {"model": model, "optimizer": optimizer}


def save(folder: Path, step: int = 5, content: int | None = None) -> Path:
    state = {"step": step, "config": {"solver": {"name": "dtsn"}, "learning_rate": 0.25, "x": [1, None]}}
    return save_checkpoint(folder / f"step-{step}", tensors(step if content is None else content), state)


def load(path: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """All that a checkpoint holds, as plain values that compare by ``==``."""
    state = load_state(path)
    stems = [name.removesuffix(".safetensors") for name in state["files"]]
    return state, plain({stem: load_tensors_of(path, stem, state) for stem in stems})


def plain(content: dict[str, dict[str, Tensor]]) -> dict[str, dict[str, Any]]:
    return {stem: {k: (v.dtype, v.tolist()) for k, v in t.items()} for stem, t in content.items()}


def refused(path: Path, file: str) -> Any:
    return pytest.raises(CheckpointError, match=re.escape(str(path / file)))


def seal(path: Path, state: dict[str, Any]) -> None:
    """Write a ``state.json`` with a valid checksum, as one who means harm can."""
    state.pop("sha256", None)
    digest = hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()
    (path / "state.json").write_text(json.dumps({**state, "sha256": digest}))


def forge(path: Path, blob: bytes) -> None:
    """Put in another ``model.safetensors``, with valid checksums."""
    (path / "model.safetensors").write_bytes(blob)
    state = json.loads((path / "state.json").read_bytes())
    state["files"]["model.safetensors"] = hashlib.sha256(blob).hexdigest()
    seal(path, state)


def listing(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


# --- what was saved comes back -----------------------------------------------------------------------


def test_round_trip(tmp_path: Path) -> None:
    kinds = [torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool]
    content = {"model": {str(kind): torch.tensor([[0, 1], [1, 1]]).to(kind) for kind in kinds}}
    content["more"] = {"inf": torch.tensor([np.inf, -0.0]), "one": torch.tensor(3), "none": torch.empty(0)}
    state = {"step": 7, "config": {"rate": 0.1, "text": "λ", "list": [1, [2]], "none": None}}
    path = save_checkpoint(tmp_path / "deep" / "step-7", content, state)
    loaded, values = load(path)
    assert values == plain(content)
    assert {name: loaded[name] for name in state} == state
    assert sorted(p.name for p in path.iterdir()) == ["model.safetensors", "more.safetensors", "state.json"]
    assert os.listdir(path.parent) == ["step-7"]


def test_same_content_gives_same_bytes(tmp_path: Path) -> None:
    assert listing(save(tmp_path / "a")) == listing(save(tmp_path / "b"))


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    save(tmp_path, 4)
    path = save(tmp_path, 5)
    save(tmp_path, 5, content=99)
    assert load(path)[1] == plain(tensors(99))
    assert sorted(os.listdir(tmp_path)) == ["step-4", "step-5"]


@pytest.mark.parametrize("again", [False, True])
def test_leftovers_of_a_killed_process_are_no_hindrance(again: bool, tmp_path: Path) -> None:
    if again:
        save(tmp_path, 5)
    for leftover in (".step-5.partial", ".step-5.old"):
        (tmp_path / leftover).mkdir()
        (tmp_path / leftover / "stranger").touch()
    path = save(tmp_path, 5, content=99)
    assert sorted(os.listdir(path)) == sorted(FILES)
    assert load(path)[1] == plain(tensors(99))
    prune_checkpoints(tmp_path, 1)
    assert os.listdir(tmp_path) == ["step-5"]


def test_optimizer_round_trip() -> None:
    """Twelve parameters: "10" sorts before "2" as text."""

    def make() -> tuple[list[torch.nn.Parameter], torch.optim.Optimizer]:
        weights = [torch.nn.Parameter(torch.full((i + 1,), float(i))) for i in range(12)]
        return weights, torch.optim.AdamW(weights, lr=0.1)

    def step(weights: list[torch.nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
        for weight in weights:
            weight.grad = weight.detach().sin() + 0.1
        optimizer.step()

    weights, optimizer = make()
    for _ in range(3):
        step(weights, optimizer)
    others, other = make()
    for mine, theirs in zip(others, weights, strict=True):
        mine.data.copy_(theirs.data)
    restore_optimizer(other, {k: v.clone() for k, v in flatten_optimizer(optimizer).items()})
    step(weights, optimizer)
    step(others, other)
    assert all(torch.equal(a, b) for a, b in zip(weights, others, strict=True))


# --- damage ------------------------------------------------------------------------------------------


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = save(tmp_path)
    sound, rng = load(path), np.random.default_rng(0)
    for name in FILES:
        original = (path / name).read_bytes()
        for place in rng.choice(8 * len(original), 70, replace=False):
            blob = bytearray(original)
            blob[place // 8] ^= 1 << place % 8
            (path / name).write_bytes(blob)
            with refused(path, name):
                load(path)
        (path / name).write_bytes(original)
    assert load(path) == sound


@each_file
def test_truncated_or_longer_or_missing_file(name: str, tmp_path: Path) -> None:
    path = save(tmp_path)
    original = (path / name).read_bytes()
    for blob in (*(original[:size] for size in (0, 1, 7, 8, len(original) // 2, -1)), original + b"x"):
        (path / name).write_bytes(blob)
        with refused(path, name):
            load(path)
    (path / name).unlink()
    with refused(path, name):
        load(path)
    (path / name).mkdir()
    with refused(path, name):
        load(path)


def a_zip() -> bytes:
    file = io.BytesIO()
    torch.save({"weight": torch.ones(2)}, file)
    assert zipfile.is_zipfile(file)
    return file.getvalue()


class Bomb:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return pytest.fail, ("a pickle was run",)


GARBAGE = {
    "random": np.random.default_rng(0).bytes(1000),
    "pickle": pickle.dumps(Bomb()),
    "zip": a_zip(),
    "null": b"null",
    "list": b"[]",
    "object": b"{}",
    "number": b"1" * 10_000,
    "utf-16": '{"format": "dtsn-checkpoint"}'.encode("utf-16"),
    "nested lists": b"[" * 10**5,
    "nested objects": b'{"a":' * 10**5,
}


@each_file
@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage(name: str, kind: str, tmp_path: Path) -> None:
    path = save(tmp_path)
    (path / name).write_bytes(GARBAGE[kind])
    with refused(path, name):
        load(path)
    assert latest_checkpoint(tmp_path) is None


def test_nested_state_of_any_depth(tmp_path: Path) -> None:
    """What is shallow enough to be read may still be too deep to be hashed."""
    path = save(tmp_path)
    text = (path / "state.json").read_text().rstrip().removesuffix("}")
    for depth in (*range(100, 900, 100), *range(900, 1000), 5000, 10**5):
        (path / "state.json").write_text(f'{text}, "x": {"[" * depth}{"]" * depth}}}')
        with refused(path, "state.json"):
            load(path)


def test_state_is_bounded(tmp_path: Path) -> None:
    path = save(tmp_path)
    seal(path, {**load_state(path), "x": "y" * MAX_STATE_BYTES})
    with pytest.raises(
        CheckpointError, match=f"state.json must have at most {MAX_STATE_BYTES} bytes"
    ) as error:
        load_state(path)
    assert "unreadable" not in str(error.value)


@pytest.mark.parametrize("version", [0, 2, 99, "1", None, [1]])
def test_other_format_version(version: Any, tmp_path: Path) -> None:
    path = save(tmp_path)
    seal(path, {**load_state(path), "format_version": version})
    with pytest.raises(CheckpointError, match=re.escape(f"state.json has format version {version!r}")):
        load(path)


@pytest.mark.parametrize("files", [None, [], "model.safetensors", {"model.safetensors": None}])
def test_sealed_state_without_checksums(files: Any, tmp_path: Path) -> None:
    path = save(tmp_path)
    seal(path, {**load_state(path), "files": files})
    with pytest.raises(CheckpointError, match=re.escape(str(path))):
        load_tensors_of(path, "model", load_state(path))
    assert latest_checkpoint(tmp_path) is None


def safetensors(header: Any, data: bytes = bytes(16), length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype: str = "F32", shape: Any = (4,), offsets: Any = (0, 16)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


LIES = {
    "empty": b"",
    "longer header than the file": safetensors({"a": entry()}, length=2**40),
    "negative length": safetensors({"a": entry()}, length=2**64 - 1),
    "not JSON": safetensors(b"\x80" * 50),
    "nested": safetensors(b"[" * 10**5),
    "a list": safetensors([entry()]),
    "beyond the file": safetensors({"a": entry(shape=(2**20,), offsets=(0, 2**22))}),
    "backwards": safetensors({"a": entry(offsets=(16, 0))}),
    "a gap": safetensors({"a": entry(shape=(1,), offsets=(12, 16))}),
    "overlap": safetensors({"a": entry(), "b": entry()}),
    "more than the bytes": safetensors({"a": entry(shape=(5,))}),
    "overflow": safetensors({"a": entry(shape=(2**62, 4))}),
    "negative": safetensors({"a": entry(shape=(-2, -2))}),
    "unknown type": safetensors({"a": entry("F99")}),
    "no torch type": safetensors({"a": entry("F6_E2M3", shape=(4,), offsets=(0, 3))}, bytes(3)),
    "complex": safetensors({"a": entry("C64", shape=(3,))}),
    "unread bytes": safetensors({"a": entry()}, bytes(17)),
}


@pytest.mark.parametrize("lie", LIES)
def test_header_that_lies(lie: str, tmp_path: Path) -> None:
    path = save(tmp_path)
    forge(path, LIES[lie])
    with refused(path, "model.safetensors"):
        load(path)
    assert latest_checkpoint(tmp_path) is None


def test_forging_by_hand_works(tmp_path: Path) -> None:
    """So that the tests above are refused for the right reason."""
    path = save(tmp_path)
    forge(path, safetensors({"a": entry()}))
    assert load(path)[1]["model"] == {"a": (torch.float32, [0.0] * 4)}


# --- which ones there are ----------------------------------------------------------------------------


def test_latest_passes_over_damaged_ones(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path / "missing") is None
    two, nine, ten, hundred = (save(tmp_path, step) for step in (2, 9, 10, 100))  # not the order of names
    for stranger in ("step-", "step-x", "step-1000.bak", ".step-2000.partial", "other"):
        shutil.copytree(hundred, tmp_path / stranger)
    (tmp_path / "step-3000").touch()
    assert checkpoints(tmp_path)[:4] == [two, nine, ten, hundred]
    assert latest_checkpoint(tmp_path) == hundred
    (hundred / "optimizer.safetensors").write_bytes(b"garbage")
    assert latest_checkpoint(tmp_path) == ten
    (ten / "state.json").unlink()
    assert latest_checkpoint(tmp_path) == nine
    (nine / "model.safetensors").unlink()
    assert latest_checkpoint(tmp_path) == two
    shutil.rmtree(two)
    assert latest_checkpoint(tmp_path) is None


@pytest.mark.parametrize("keep", [1, 2, 3, 9])
def test_prune_keeps_the_newest(keep: int, tmp_path: Path) -> None:
    steps = [2, 9, 10, 100]
    for step in steps:
        save(tmp_path, step)
    shutil.copytree(tmp_path / "step-9", tmp_path / ".step-11.partial")
    shutil.copytree(tmp_path / "step-9", tmp_path / "mine")
    prune_checkpoints(tmp_path, keep)
    assert sorted(os.listdir(tmp_path)) == sorted(["mine", *(f"step-{step}" for step in steps[-keep:])])


def damage(path: Path) -> None:
    (path / "model.safetensors").write_bytes(b"garbage")


def test_prune_never_deletes_the_only_sound_one(tmp_path: Path) -> None:
    paths = [save(tmp_path, step) for step in (1, 2, 3, 4)]
    for path in paths[1:]:
        damage(path)
    prune_checkpoints(tmp_path, 1)
    assert latest_checkpoint(tmp_path) == paths[0]
    damage(paths[0])
    before = sorted(os.listdir(tmp_path))
    prune_checkpoints(tmp_path, 1)
    assert sorted(os.listdir(tmp_path)) == before  # nothing to rely on: nothing is deleted


def test_prune_keeps_the_best_by_validation(tmp_path: Path) -> None:
    assert best_checkpoint(tmp_path) is None
    for step, score in ((1, 0.5), (2, 0.9), (3, 0.9), (4, 0.1), (5, None)):
        state = {"step": step} | ({} if score is None else {"validation": score})
        save_checkpoint(tmp_path / f"step-{step}", tensors(step), state)
    prune_checkpoints(tmp_path, 1)
    assert sorted(os.listdir(tmp_path)) == ["step-2", "step-5"]
    assert best_checkpoint(tmp_path) == tmp_path / "step-2"
    damage(tmp_path / "step-2")
    assert best_checkpoint(tmp_path) is None


def test_killed_while_a_step_is_saved_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the two renames, the old one stands in for the step."""
    path = save(tmp_path, 5)
    names = iter(["first", "second"])

    class KilledError(BaseException):
        pass

    def rename(source: Path, target: Path) -> None:
        if next(names) == "second":
            raise KilledError
        Path(source).replace(target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", rename)
        with pytest.raises(KilledError):
            save(tmp_path, 5, content=99)
    old = latest_checkpoint(tmp_path)
    assert old is not None
    assert not path.exists()
    assert load(old)[1] == plain(tensors(5))
    prune_checkpoints(tmp_path, 1)
    assert latest_checkpoint(tmp_path) == old
    save(tmp_path, 5, content=99)
    prune_checkpoints(tmp_path, 1)
    assert os.listdir(tmp_path) == ["step-5"]
    assert load(path)[1] == plain(tensors(99))


def test_saving_the_same_again_touches_nothing(tmp_path: Path) -> None:
    path = save(tmp_path, 5)
    before = path.stat().st_ino
    save(tmp_path, 5)
    assert path.stat().st_ino == before
    damage(path)
    save(tmp_path, 5)
    assert load(path)[1] == plain(tensors(5))


@each_file
def test_what_is_no_file_is_not_read(name: str, tmp_path: Path) -> None:
    """A pipe would wait, a device would go on for ever."""
    path = save(tmp_path)
    for make in (os.mkfifo, lambda place: os.symlink("/dev/zero", place)):
        (path / name).unlink()
        make(path / name)
        with refused(path, name):
            load(path)


# --- a disk that fails -------------------------------------------------------------------------------


def failing(real: Callable[..., Any], call: int) -> Callable[..., Any]:
    """``real``, whose call number ``call`` finds the disk full."""
    calls = iter(range(100))

    def stand_in(*arguments: Any) -> Any:
        if next(calls) == call:
            raise OSError(28, "No space left on device")
        return real(*arguments)

    return stand_in


@pytest.mark.parametrize("step", [5, 6], ids=["again", "new"])
@pytest.mark.parametrize("call", range(len(FILES)))
def test_no_space_left(call: int, step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 5)
    before = listing(tmp_path)
    monkeypatch.setattr(os, "fsync", failing(os.fsync, call))
    with pytest.raises(CheckpointError, match=rf"step-{step}: .*No space left"):
        save(tmp_path, step, content=99)
    assert listing(tmp_path) == before
    assert os.listdir(tmp_path) == ["step-5"]


@pytest.mark.parametrize("name", ["rename", "replace"])
@pytest.mark.parametrize("call", [0, 1])
def test_renaming_fails(name: str, call: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the way to the new one's place, a failure there does not cost the old one."""
    path = save(tmp_path, 5)
    monkeypatch.setattr(os, name, failing(getattr(os, name), call))
    try:
        save(tmp_path, 5, content=99)
    except CheckpointError:
        assert load(path)[1] == plain(tensors(5))
    else:
        assert load(path)[1] == plain(tensors(99))
    assert os.listdir(tmp_path) == ["step-5"]


def test_replace_durably_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.json"
    replace_durably(path, b"old")
    replace_durably(path, b"new")
    assert path.read_bytes() == b"new"
    monkeypatch.setattr(os, "fsync", failing(os.fsync, 0))
    with pytest.raises(OSError, match="No space left"):
        replace_durably(path, b"newer")
    assert path.read_bytes() == b"new"


FULL_DISK = """
import resource, sys
from pathlib import Path
import torch
from dtsn.checkpoint import CheckpointError, save_checkpoint

folder = Path(sys.argv[1])
save_checkpoint(folder / "step-1", {"model": {"a": torch.ones(10)}}, {"step": 1})
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
try:
    save_checkpoint(folder / "step-2", {"small": {"a": torch.ones(1)}, "model": {"a": torch.ones(9999)}}, {})
except CheckpointError as error:
    print(error)
"""


def test_files_that_may_not_grow(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FULL_DISK, tmp_path], capture_output=True, text=True)
    assert "File too large" in done.stdout, done.stderr
    assert os.listdir(tmp_path) == ["step-1"]
    assert latest_checkpoint(tmp_path) == tmp_path / "step-1"


def test_checkpoint_module_does_not_unpickle() -> None:
    source = Path(checkpoint.__file__).read_text()
    assert not re.search(r"import pickle|torch\.load\b|eval\(|exec\(", source)
