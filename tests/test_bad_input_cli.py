"""Bad values on the command line are refused in a sentence that names the option: never a crash."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout

from hypothesis import given, settings
from hypothesis import strategies as st

from bad_input_cases import EXAMPLES, cases, count_case
from bad_input_cases import dataset as dataset
from bad_input_cases import report_count as report_count
from dtsn.cli import main as cli
from dtsn.data import Dataset

words = st.text("abcxyz-_.,0", min_size=1, max_size=6).filter(lambda word: not word.startswith("-"))
no_integer = words.filter(lambda word: not word.replace("_", "").isdigit())
too_small = st.integers(-(10**20), 0).map(str)
negative = st.integers(-(10**20), -1).map(str)
OPTIONS: dict[str, st.SearchStrategy[str]] = {
    "train --steps": no_integer | too_small,
    "train --batch-size": no_integer | too_small,
    "train --checkpoint-every": no_integer | too_small,
    "train --keep-checkpoints": no_integer | too_small,
    "train --seed": no_integer | negative,
    "train --learning-rate": st.sampled_from(["-1", "0", "nan", "inf", "-inf", "1e999"]),
    "train --weight-decay": st.sampled_from(["-1", "nan", "inf", "x"]),
    "train --on-nan": words,
    "train --augment": words,
    "train --threads": no_integer | too_small,
    "train --solver.name": words,
    "train --solver.iterations": no_integer | too_small,
    "train --solver.discount": st.sampled_from(["-0.1", "1.1", "nan", "x"]),
    "train --solver.weights.cql": st.sampled_from(["-1", "nan", "inf", "x"]),
    "train --network.encoder": words,
    "train --network.latent": no_integer | too_small,
    "collect --episodes": no_integer | too_small,
    "collect --exits": words | st.sampled_from(["0", "3", "-1"]),
    "collect --seed": no_integer | negative,
    "collect --discount": st.sampled_from(["-1", "2", "nan", "x"]),
    "eval --levels": no_integer | too_small,
    "eval --iterations": no_integer | too_small,
    "eval --seed": no_integer | negative,
    "eval --split": words,
    "eval --rule": words,
    "reproduce --jobs": no_integer | too_small,
    "reproduce --levels": no_integer | too_small,
    "reproduce --variants": words,
}


@settings(cases, max_examples=EXAMPLES if EXAMPLES > 50 else 5)  # a parse takes its time
@given(option=st.sampled_from(sorted(OPTIONS)), data=st.data())
def test_command_line(option: str, data: st.DataObject, dataset: Dataset) -> None:
    value = data.draw(OPTIONS[option])
    command, name = option.split()
    arguments = [command, f"{name}={value}"]
    folder = dataset.path.parent
    if command == "train":
        arguments += ["--data", str(dataset.path), "--run", str(folder / "run")]
    if command == "collect":
        arguments += ["--out", str(folder / "new.h5")]
    out, err = io.StringIO(), io.StringIO()
    before, sys.argv = sys.argv, ["dtsn", *arguments]
    code: object = 0
    try:
        with redirect_stdout(out), redirect_stderr(err):
            cli.main()
    except SystemExit as exit:
        code = exit.code
    finally:
        sys.argv = before
    count_case()
    said = out.getvalue() + err.getvalue()
    assert code == 2, said
    assert "Traceback" not in said
    words = [word.rstrip("s") for word in name.strip("-").split(".")]  # "unknown variant", "unknown solver"
    assert any(word in said or word.replace("-", "_") in said for word in words), said
    assert sorted(path.name for path in folder.iterdir() if path.name not in ("other.h5", "run")) == [
        "data.h5"
    ]
