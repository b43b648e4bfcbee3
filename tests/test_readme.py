"""What the README tells a newcomer to type does what it says, at small sizes."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parent.parent / "README.md").read_text()
SMALL_NETWORK = "--network.latent 8 --network.hidden 16"
SMALL = {
    "plan": "",
    "play": "--delay 0",
    "doctor": "",
    "collect": "--episodes 20",
    "data": "",
    "train": f"--steps 4 --batch-size 8 {SMALL_NETWORK}",
    "eval": "--levels 10",
    "reproduce": "--variants qnet --seeds 1 --steps 2 --levels 10 --validate-every 2 --jobs 1",
    "report": "",
}


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_python_blocks_run() -> None:
    assert blocks("python")
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), {})


def test_commands_run(tmp_path: Path) -> None:
    commands = re.findall(r"^dtsn (.*?)\s*(?:#.*)?$", "\n".join(blocks("sh")), re.MULTILINE)
    assert list(dict.fromkeys(command.split()[0] for command in commands)) == list(SMALL)
    for command in commands:
        small = shlex.split(SMALL[command.split()[0]])
        call = [sys.executable, "-m", "dtsn", *shlex.split(command), *small]
        result = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert result.returncode == 0, result.stderr
    assert (tmp_path / "mine/report.md").exists()


def test_make_targets_exist() -> None:
    makefile = (Path(__file__).parent.parent / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", "\n".join(blocks("sh")), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def test_links_lead_somewhere() -> None:
    root = Path(__file__).parent.parent
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (root / target).exists(), target


def test_pictures_are_small() -> None:
    figures = Path(__file__).parent.parent / "docs/figures"
    assert sum((figures / name).stat().st_size for name in ("episode.gif", "plan.png")) < 300_000
