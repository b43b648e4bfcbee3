"""The layers of the architecture: which package may import which, read from the sources.

``python tests/test_imports.py`` prints the picture that docs/design.md shows.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import dtsn

ROOT = Path(dtsn.__file__).parent

# Package or module below dtsn -> the ones it may import. Everything is bound: a new one needs a row here.
FOUNDATION = {
    "arrays", "batch", "checkpoint", "config", "errors", "processes", "randomness", "settings", "spelling",
    "storage",
}  # fmt: skip
METHOD = {"search", "models", "solvers"}
PACKAGES: dict[str, set[str]] = {
    "arrays": set(),
    "spelling": set(),
    "errors": set(),
    "batch": {"errors"},
    "randomness": {"arrays"},
    "storage": {"arrays", "errors"},
    "checkpoint": {"arrays", "errors", "storage"},
    "config": {"errors", "spelling"},
    "processes": {"errors"},
    "settings": {"errors"},
    "search": FOUNDATION,
    "models": FOUNDATION | {"search"},
    "solvers": FOUNDATION | {"search", "models"},
    "integrations": FOUNDATION | {"solvers"},
    "envs": FOUNDATION,
    "data": FOUNDATION | {"envs"},
    "training": FOUNDATION | METHOD | {"data", "envs"},
    "experts": FOUNDATION | {"models", "envs", "data", "training"},
    "pretrained": set(),
    "evaluation": FOUNDATION | METHOD | {"envs", "experts"},
    "drawing": FOUNDATION | {"envs"},
    "inspection": FOUNDATION | METHOD | {"drawing", "envs", "evaluation", "experts"},
    "tuning": FOUNDATION | METHOD | {"envs", "data", "training", "evaluation", "drawing"},
    "viewer": FOUNDATION | METHOD | {"envs", "experts", "evaluation", "inspection", "pretrained", "training"},
    "reproduce": FOUNDATION
    | METHOD
    | {"envs", "data", "experts", "training", "evaluation", "inspection", "drawing", "integrations"},
}
PACKAGES["bench"] = {*PACKAGES} - {"viewer"}
PACKAGES["cli"] = {*PACKAGES, "cli"}
PACKAGES["__main__"] = {"cli"}
# Modules that must start without torch, so that --help and reports do not wait for it.
WITHOUT_TORCH = {
    "arrays",
    "config",
    "envs",
    "errors",
    "randomness",
    "settings",
    "spelling",
    "storage",
    "drawing",
}


def module_name(path: Path) -> str:
    parts = ("dtsn", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def imports(source: str, package: str) -> set[str]:
    """Every module that a source of ``package`` imports, wherever in the file, relative or not."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            # `from dtsn import drawing` imports a module, `from dtsn.drawing import save` a name of one.
            names = {f"{origin}.{alias.name}" for alias in node.names}
            found |= {name if name in SOURCES else origin for name in names}
    return found


def top(module: str) -> str:
    """``dtsn.search.tree -> search``; ``""`` for the package itself and for other people's modules."""
    parts = module.split(".")
    return parts[1] if parts[0] == "dtsn" and len(parts) > 1 else ""


def violations(module: str, imported: set[str]) -> set[str]:
    own = top(module)
    bad = {name for name in imported if top(name) and top(name) != own and top(name) not in PACKAGES[own]}
    if own in WITHOUT_TORCH:
        bad |= {name for name in imported if name.partition(".")[0] == "torch"}
    return bad


@pytest.mark.parametrize("module", [name for name in SOURCES if name != "dtsn"])
def test_layers(module: str) -> None:
    path = SOURCES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    assert not violations(module, imports(path.read_text(), package))


def test_every_package_has_a_row() -> None:
    assert {top(module) for module in SOURCES} - {""} <= set(PACKAGES)


@pytest.mark.parametrize(
    "source",
    [
        "import dtsn.search",
        "import numpy, dtsn.search as s",
        "from dtsn import batch, search",
        "from dtsn.search import SearchTree",
        "from . import search",
        "from .search import SearchTree",
        "def f():\n    from dtsn.search import SearchTree",
        "if TYPE_CHECKING:\n    from dtsn.search import SearchTree",
    ],
)
def test_the_check_sees_every_way_to_import(source: str) -> None:
    assert violations("dtsn.envs.navigation", imports(source, "dtsn")) == {"dtsn.search"}


def test_nobody_imports_names_from_the_package_itself() -> None:
    # A name re-exported by dtsn/__init__.py would go around every arrow.
    for module, path in SOURCES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "dtsn" and node.level == 0:
                names = {alias.name for alias in node.names if f"dtsn.{alias.name}" not in SOURCES}
                assert names <= {"__version__"}, module
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "dtsn"
            ):
                assert node.attr.startswith("__"), module


def test_deliberate_errors_are_for_users() -> None:
    # A plain ValueError would be shown as a bug: by the command line, with its traceback.
    for module, path in SOURCES.items():
        assert "raise ValueError" not in path.read_text(), module


def picture() -> str:
    """The layers, each above what it may import."""
    levels: dict[str, int] = {}
    for name, allowed in PACKAGES.items():
        levels[name] = 1 + max((levels[other] for other in allowed if other in levels), default=-1)
    rows = {level: sorted(n for n in levels if levels[n] == level) for level in sorted(set(levels.values()))}
    return "\n".join("  ".join(names) for _, names in sorted(rows.items(), reverse=True))


if __name__ == "__main__":
    print(picture())
