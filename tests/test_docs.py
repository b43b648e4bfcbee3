"""The tutorial learns what it says, commands and code of the pages run, and the site builds."""

from __future__ import annotations

import inspect
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dtsn
import test_imports
from dtsn.cli import main as cli
from dtsn.cli.arguments import parse

DOCS = Path(__file__).parent.parent / "docs"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def test_tutorial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, names = blocks("tutorial.md", "python"), {"__name__": "tutorial"}
    for block in code:
        exec(compile(block, "tutorial.md", "exec"), names)
    found: dict[str, Any] = names
    assert found["ours"] > found["best"] - 0.5
    assert found["chance"] < -15
    assert sum(bool(line.strip()) for block in code[:4] for line in block.splitlines()) <= 60
    run("dtsn plan --state taxi.json --out taxi.svg", monkeypatch)
    run("dtsn data info taxi.h5", monkeypatch)
    small = "--steps 2 --network.latent 8 --network.hidden 8"
    run(f"dtsn train taxi.h5 --run runs/taxi {small}", monkeypatch)


def test_own_code() -> None:
    names: dict[str, Any] = {"__name__": "own_code"}
    for block in blocks("own-code.md", "python"):
        exec(compile(block, "own-code.md", "exec"), names)
    assert names["tree"].q_values.shape == (32, 20, 2)
    assert names["solver"].act(names["batch"].observation).shape == (32,)


def test_game_of_24(capsys: pytest.CaptureFixture[str]) -> None:
    (code,), (shown,) = blocks("game24.md", "python"), blocks("game24.md", "text")
    exec(compile(code, "game24.md", "exec"), {"__name__": "game24"})
    assert capsys.readouterr().out == shown


QUICK = {
    "collect": "--episodes 20",
    "train": "--steps 4 --batch-size 8 --network.latent 8 --network.hidden 16",
    "eval": "--levels 10",
    "demo": None,  # minutes
    "play": "--delay 0",
}


def test_quickstart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    commands = [
        line for block in blocks("quickstart.md", "sh") for line in block.splitlines() if "dtsn " in line
    ]
    commands = [line.partition("#")[0] for line in commands if line.startswith("dtsn ")]
    assert len(commands) > 8
    for command in commands:
        small = QUICK.get(command.split()[1], "")
        if small is not None:
            run(f"{command} {small}", monkeypatch)


def run(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command in this process: a dozen imports of torch would take longer than the commands."""
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    cli.main()


def documented() -> dict[str, str]:
    """Every ``dtsn`` command of README and pages, but those that are a record, and where it stands."""
    found: dict[str, str] = {}
    for page in (DOCS.parent / "README.md", *sorted(DOCS.glob("*.md"))):
        text = re.sub(r"```text\n.*?```", "", page.read_text(), flags=re.DOTALL).replace("\\\n", " ")
        lines = re.findall(r"^(?:torchrun .* )?dtsn ([a-z].*?)\s*(?: #.*)?$", text, re.MULTILINE)
        for command in lines + re.findall(r"`(?:[^`\n]* )?(?<!from )dtsn ([a-z][^`\n]*)`", text):
            found.setdefault(command, page.name)
    return found


def test_every_command_is_accepted() -> None:
    """Its options are real; nothing is run."""
    commands = documented()
    assert len(commands) > 60
    for command, page in commands.items():
        words = shlex.split(re.sub(r" > log|; done|…", "", command).replace("$s", "0"))
        if words[-1] == "--help":
            continue
        if words[0] in ("train", "tune") and words[1:] and re.fullmatch(r".*\.h5|DATA", words[1]):
            words[1] = "navigation"  # a file of the reader's
        try:
            parse(cli.COMMANDS, words)
        except SystemExit:
            pytest.fail(f"{page}: dtsn {command}")


def test_bigfishs_command_is_the_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    from dtsn.experts import ppg
    from dtsn.reproduce.procgen.budgets import PROCGEN_BUDGETS

    (command,) = [block for block in blocks("procgen.md", "sh") if "--game bigfish" in block]
    asked = []
    monkeypatch.setattr(ppg, "train_expert", lambda run, config, **_: asked.append(config) or iter(()))
    run(command.replace("\\\n", " "), monkeypatch)
    assert asked == [PROCGEN_BUDGETS["cpu"].expert_of("bigfish")]


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("*.md")))
def test_links_lead_somewhere(page: str) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)(#[^):]*)?\)", (DOCS / page).read_text()):
        path = DOCS / (target or page)
        assert path.exists(), target
        if anchor:
            assert anchor[1:] in anchors(path), anchor


def anchors(path: Path) -> set[str]:
    """Of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", ["maps.md", "navigation.md"])
def test_python_blocks_run(page: str) -> None:
    for block in blocks(page, "python"):
        exec(compile(block, page, "exec"), {})


def test_design_shows_the_layers() -> None:
    shown = (DOCS / "design.md").read_text()
    assert test_imports.picture() in shown, "python tests/test_imports.py prints the picture"


def test_every_public_name_is_in_the_reference() -> None:
    shown = re.findall(r"^::: dtsn\.(\w+)$", (DOCS / "reference.md").read_text(), re.MULTILINE)
    assert sorted(shown) == sorted(dtsn.__all__)
    for name in dtsn.__all__:
        assert inspect.getdoc(getattr(dtsn, name)), name


def test_every_page_is_in_the_menu() -> None:
    menu = (DOCS.parent / "mkdocs.yml").read_text()
    assert {page.name for page in DOCS.glob("*.md")} == set(re.findall(r": (\S+\.md)$", menu, re.MULTILINE))


def test_the_site_builds(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    call = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    result = subprocess.run(call, cwd=DOCS.parent, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    reference = (tmp_path / "reference/index.html").read_text()
    assert all(f'id="dtsn.{name}"' in reference for name in dtsn.__all__)
