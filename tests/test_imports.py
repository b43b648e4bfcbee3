"""The arrows of the architecture: who may import whom, read from the sources."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import dtsn

ROOT = Path(dtsn.__file__).parent

# Modules (with all below them) -> what they must not import. A name covers all below it; "dtsn.*" is every
# module of the package but the ones in ALLOWED. Files that do not exist yet are bound when they come.
# Configurations are plain data: anyone may read them, so they import nothing but hints at misspelt names.
FORBIDDEN: dict[str, set[str]] = {
    "dtsn.spelling": {"dtsn.*", "torch", "numpy", "gymnasium"},
    "dtsn.config": {"dtsn.*", "torch", "numpy", "gymnasium"},
    "dtsn.search": {"dtsn.*"},  # a world model is only a protocol
    "dtsn.losses": {"dtsn.*"},
    "dtsn.networks": {"dtsn.*"},
    "dtsn.path_encoder": {"dtsn.*"},
    "dtsn.world_model": {"dtsn.search", "dtsn.envs", "dtsn.data"},
    "dtsn.solvers": {"dtsn.envs", "dtsn.data", "dtsn.training"},
    "dtsn.envs": {"dtsn.*", "torch"},
    "dtsn.experts": {"dtsn.search", "dtsn.solvers"},
    "dtsn.data": {"dtsn.search", "dtsn.solvers"},
    "dtsn.collect": {"dtsn.search", "dtsn.solvers"},
    "dtsn.training": {"dtsn.envs", "dtsn.cli"},
    "dtsn.checkpoint": {"dtsn.envs", "dtsn.cli"},
    "dtsn.evaluation": {"dtsn.losses", "dtsn.training"},
    "dtsn.inspection": {"dtsn.losses", "dtsn.training", "dtsn.data", "dtsn.cli", "dtsn.plots"},
    "dtsn.terminal": {"dtsn.cli", "torch"},
    "dtsn.textview": {"dtsn.cli", "torch"},
    "dtsn.report": {"torch"},
    "dtsn.plots": {"torch"},
    "dtsn.viewer": {"dtsn.cli", "dtsn.data", "dtsn.losses"},  # shows what others compute
}
ALLOWED = {
    "dtsn.config": {"dtsn.spelling"},
    "dtsn.search": {"dtsn.config", "dtsn.search"},
    "dtsn.losses": {"dtsn.config"},
    "dtsn.networks": {"dtsn.config", "dtsn.path_encoder", "dtsn.world_model"},
    "dtsn.envs": {"dtsn.envs", "dtsn.spelling"},
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
            # `from dtsn import losses` imports a module, `from dtsn.losses import q_loss` a name of one.
            names = {f"{origin}.{alias.name}" for alias in node.names}
            found |= {name if name in SOURCES else origin for name in names}
    return found


def inside(module: str, names: set[str]) -> bool:
    return any(module == name or module.startswith(name + ".") for name in names)


def violations(module: str, imported: set[str]) -> set[str]:
    bad: set[str] = set()
    for owner, forbidden in FORBIDDEN.items():
        if inside(module, {owner}):
            whole = "dtsn.*" in forbidden
            bad |= {
                name for name in imported if inside(name, forbidden) or (whole and inside(name, {"dtsn"}))
            }
            bad -= {name for name in bad if inside(name, ALLOWED.get(owner, set()))}
    return bad


@pytest.mark.parametrize("module", SOURCES)
def test_arrows(module: str) -> None:
    path = SOURCES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    assert not violations(module, imports(path.read_text(), package))


def test_losses_need_only_torch() -> None:
    roots = {name.partition(".")[0] for name in imports(SOURCES["dtsn.losses"].read_text(), "dtsn")}
    assert roots - sys.stdlib_module_names == {"torch", "dtsn"}


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
    assert violations("dtsn.world_model", imports(source, "dtsn")) == {"dtsn.search"}
    assert violations("dtsn.losses", imports(source, "dtsn")) >= {"dtsn.search"}


def test_the_check_knows_packages_and_exceptions() -> None:
    assert imports("from ..envs.navigation import MOVES", "dtsn.experts") == {"dtsn.envs.navigation"}
    assert violations("dtsn.envs.navigation", {"torch.nn", "numpy", "dtsn.envs.procgen", "dtsn.batch"}) == {
        "torch.nn",
        "dtsn.batch",
    }
    assert violations("dtsn.networks", {"dtsn.world_model", "dtsn.search", "torch"}) == {"dtsn.search"}
    assert violations("dtsn.search", {"dtsn", "torch", "dtsn.world_model"}) == {"dtsn", "dtsn.world_model"}


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
