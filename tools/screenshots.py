"""Take the pictures of docs/viewer.md: python tools/screenshots.py [FOLDER]; needs chromium."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

FIGURES = Path(__file__).parent.parent / "docs/figures"
LEVEL = "level=2000000"  # the same hall as in the README's figure
SHOTS = {  # name: (width, height, colour scheme, what the address says, a node to point at)
    "light": (1280, 800, "light", f"{LEVEL}&t=7", 17),
    "dark": (1280, 800, "dark", f"{LEVEL}&iterations=40&a=NWWN&truth=1", None),
    "phone": (380, 840, "light", f"{LEVEL}&a=NWW", None),
    "comparison": (1280, 800, "light", f"{LEVEL}&vs=shipped/navigation-qnet", None),
}


def main(folder: Path = FIGURES) -> None:
    """Start the viewer on a free port, without any runs, and photograph it."""
    with tempfile.TemporaryDirectory() as runs:
        command = [sys.executable, "-m", "dtsn", "view", "--port", "0", "--runs", runs]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                take(server.stdout.readline().split()[-1], folder)
            finally:
                server.terminate()


def take(address: str, folder: Path) -> None:
    """Take a picture for each of SHOTS."""
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, (width, height, scheme, view, node) in SHOTS.items():
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
            page.goto(f"{address}#{view}")
            page.wait_for_selector(".pane:not(.busy) .tree svg")
            if node is not None:
                page.hover(f'.tree [data-id="{node}"] .disc', force=True)
            page.wait_for_timeout(500)  # transitions
            path = folder / f"viewer-{name}.png"
            with_few_colours(page.screenshot()).save(path, optimize=True)
            print(path)
        browser.close()


def with_few_colours(png: bytes) -> Image.Image:
    """Reduce a picture to its 256 most frequent colours: a third of the bytes, no flat colour changes."""
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    counted: Any = picture.getcolors(picture.width * picture.height) or []
    frequent = sorted(counted, reverse=True)[:256]
    palette = Image.new("P", (1, 1))
    palette.putpalette([channel for _, colour in frequent for channel in colour])
    return picture.quantize(palette=palette, dither=Image.Dither.NONE)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
