"""The rooms of the dissector: imports go along the way of the data, and modules stay short."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

NAME = "amqpscope.dissector"
FOLDER = Path(__file__).parents[2] / "dissector"
MODULES = {".".join(path.relative_to(FOLDER).with_suffix("").parts): path for path in FOLDER.rglob("*.py")}
LONGEST = 450
MAY_IMPORT = {
    "kernels": set(),
    "formatting": set(),
    "capture": {"kernels"},
    "fields": {"kernels"},
    "packets": {"capture", "kernels"},
    "tcp": {"packets", "kernels"},
    "tls": {"tcp", "capture", "kernels"},
    "handshakes": {"tls", "fields", "formatting", "kernels"},
    "protocols": {"handshakes", "tls", "tcp", "capture", "fields", "kernels"},
    "tables": {"protocols", "handshakes", "tls", "tcp", "packets", "fields", "kernels"},
    "dissector": {"tables", "protocols", "tls", "tcp", "packets", "capture", "kernels"},
    "reading": {"dissector", "tables", "packets", "capture", "fields", "kernels"},
    "cli": {"reading", "dissector", "tables", "handshakes", "tcp", "capture", "formatting", "kernels"},
    "api": {"cli", "reading", "dissector", "handshakes", "capture"},
    "__init__": set(),
}
"""The rooms, and the modules that lie beside them, with the rooms before them that they take from."""


def imports(module: str) -> Iterator[str]:
    """The modules of the dissector that a module imports, also where it does so in a function."""
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(NAME):
            below = (node.module or "").removeprefix(NAME).removeprefix(".")
            for alias in node.names:
                full = f"{below}.{alias.name}".removeprefix(".")
                yield full if full in MODULES or f"{full}.__init__" in MODULES else below


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_go_along_the_way_of_the_data(module: str) -> None:
    room = module.split(".", maxsplit=1)[0]
    assert {name.split(".")[0] for name in imports(module)} - {room} <= MAY_IMPORT[room]


def test_no_module_imports_itself_by_a_detour() -> None:
    reached = {module: {name for name in imports(module) if name in MODULES} for module in MODULES}
    while True:
        further = {m: names.union(*(reached[name] for name in names)) for m, names in reached.items()}
        if further == reached:
            break
        reached = further
    assert [module for module, names in reached.items() if module in names] == []


@pytest.mark.parametrize("module", sorted(MODULES))
def test_modules_are_short(module: str) -> None:
    assert len(MODULES[module].read_text(encoding="utf-8").splitlines()) <= LONGEST
