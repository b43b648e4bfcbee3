"""What the README tells a newcomer to type does what it says, at small sizes."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

import readme_table
from dtsn.cli.main import main

README = (Path(__file__).parent.parent / "README.md").read_text()
SMALL_NETWORK = "--network.latent 8 --network.hidden 16"
SMALL = {
    "plan": "",
    "play": "",
    "collect": "--episodes 20",
    "train": f"--steps 4 --batch-size 8 {SMALL_NETWORK}",
    "eval": "--levels 5",
    "doctor": "",
}


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_python_blocks_run() -> None:
    assert blocks("python")
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), {})


def test_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process: six imports of torch would take longer than the commands."""
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^dtsn (.*?)\s*(?:#.*)?$", "\n".join(blocks("sh")), re.MULTILINE)
    assert list(dict.fromkeys(command.split()[0] for command in commands)) == list(SMALL)
    for command in commands:
        small = shlex.split(SMALL[command.split()[0]])
        monkeypatch.setattr(sys, "argv", ["dtsn", *shlex.split(command), *small])
        main()
    assert {path.name for path in tmp_path.iterdir()} == {"tree.svg", "episode.gif", "data", "runs"}


def test_make_targets_exist() -> None:
    makefile = (Path(__file__).parent.parent / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", "\n".join(blocks("sh")), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def test_links_lead_somewhere() -> None:
    root = Path(__file__).parent.parent
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (root / target).exists(), target


def test_the_code_is_short() -> None:
    (block,) = blocks("python")
    assert sum(bool(line.strip()) for line in block.splitlines()) <= 16


def test_the_table_is_that_of_the_results() -> None:
    headline = json.loads(readme_table.HEADLINE.read_text())
    rates, more = readme_table.success_rates(headline), readme_table.plain_sentence(headline)
    if rates is None:
        pytest.skip("the main table is not complete")
    assert readme_table.fill(README, rates, more) == README, "run: python tools/readme_table.py"


def test_the_table_of_larger_halls_is_that_of_the_results() -> None:
    summary = json.loads(readme_table.SUMMARY.read_text())
    assert readme_table.fill_halls(README, summary) == README, "run: python tools/readme_table.py"


def test_the_table_fits_its_place() -> None:
    rates = {
        row: {"2": 0.5, "1": 0.25 + 0.1 * place, "within": 0.9996, "greedy": 0.5, "seeds": 5.0}
        for place, row in enumerate(readme_table.ROWS)
    }
    filled = readme_table.fill(README, rates)
    assert "| D-TSN | **50.0** (99.0) | 55.0 (99.3) | **99.96** | **50.0** | 5 |" in filled
    assert "softmax(Q) | **50.0** | **65.0** | **99.96** | – | 5 |" in filled
    assert readme_table.fill(filled, rates) == filled
    assert readme_table.PLACE.sub("", filled) == readme_table.PLACE.sub("", README)
