"""The tutorial learns what it says, the quick start's commands run, and the list of names is true.

``python tests/test_docs.py`` writes docs/api.md anew.
"""

from __future__ import annotations

import inspect
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

import dtsn
from dtsn.cli import main as cli

QUOTE = "'"
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
    run(
        f"dtsn train --data taxi.h5 --network.encoder mlp --augment none --run runs/taxi {small}", monkeypatch
    )


def test_own_code() -> None:
    names: dict[str, Any] = {"__name__": "own_code"}
    for block in blocks("own-code.md", "python"):
        exec(compile(block, "own-code.md", "exec"), names)
    assert names["tree"].q_values.shape == (32, 20, 2)
    assert names["solver"].act(names["batch"].observation).shape == (32,)


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


# --- docs/api.md -----------------------------------------------------------------------------------------


def api_page() -> str:
    lines = ["# Public names", ""]
    lines += [
        "`from dtsn import ...`; made from the code by `python tests/test_docs.py` and checked by a test.",
        "",
    ]
    for name in dtsn.__all__:
        thing = getattr(dtsn, name)
        lines += [f"## {name}", "", first_line(thing), "", "```text", signature(name, thing), "```", ""]
        more = (inspect.getdoc(thing) or "").partition("\n\n")[2]
        lines += ["```text", more, "```", ""] if more else []
        members = public_members(thing) if inspect.isclass(thing) else {}
        lines += [f"- `{member}`: {first_line(value)}" for member, value in members.items()]
        lines += [""] * bool(members)
    lines += ["Also of use: `dtsn.training`, `dtsn.data`,"]
    lines += [
        "`dtsn.evaluation`, `dtsn.inspection.document` (a search as JSON); see their docstrings.",
        "",
    ]
    return "\n".join(lines)


def first_line(thing: Any) -> str:
    """Its docstring up to the first empty line; reStructuredText's marks become Markdown's."""
    text = " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())
    return re.sub(r":\w+:`\.?(.*?)`", r"`\1`", text.replace("``", "`"))


def signature(name: str, thing: Any) -> str:
    if isinstance(thing, type) and issubclass(thing, Exception):
        return name
    found, shown = inspect.signature(thing), []
    for parameter in found.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in shown:
            shown.append("*")
        stars = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        shown.append(f"{stars}{parameter.name}: {str(parameter.annotation).strip(QUOTE)}{default}")
    answer = "" if inspect.isclass(thing) else f" -> {str(found.return_annotation).strip(QUOTE)}"
    short = f"{name}({', '.join(shown)}){answer}"
    return (
        short if len(short) <= 100 else "\n".join([f"{name}(", *(f"    {p}," for p in shown), f"){answer}"])
    )


def parameters(method: Any) -> str:
    """Their names, without self; those by keyword alone after a star."""
    shown: list[str] = []
    for name, parameter in inspect.signature(method).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in shown:
            shown.append("*")
        if name != "self":
            shown.append(name)
    return ", ".join(shown)


def public_members(cls: type) -> dict[str, Any]:
    found = {}
    for name, value in vars(cls).items():
        described = isinstance(value, property | classmethod) or inspect.isfunction(value)
        cached = type(value).__name__ == "cached_property"
        if (described or cached) and not name.startswith("_"):
            called = inspect.isfunction(value) or isinstance(value, classmethod)
            found[f"{name}({parameters(getattr(cls, name))})" if called else name] = value
    return found


def test_api_page_is_true() -> None:
    assert (DOCS / "api.md").read_text() == api_page(), "run: python tests/test_docs.py"


def test_every_public_name_is_described() -> None:
    for name in dtsn.__all__:
        assert first_line(getattr(dtsn, name)), name


if __name__ == "__main__":
    (DOCS / "api.md").write_text(api_page())
