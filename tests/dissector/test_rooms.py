"""The rooms of the dissector: imports go along the way of the data, and each column of state has one writer."""

import ast
import importlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from amqpscope.dissector.kernels.state import Matrix, Records

NAME = "amqpscope.dissector"
FOLDER = Path(__file__).parents[2] / "dissector"
MODULES = {".".join(path.relative_to(FOLDER).with_suffix("").parts): path for path in FOLDER.rglob("*.py")}
MAY_IMPORT = {
    "kernels": set(),
    "formatting": set(),
    "time_range": set(),
    "places": {"stores"},
    "stores": set(),
    "capture": {"places", "kernels"},
    "fields": {"kernels"},
    "packets": {"capture", "kernels"},
    "tcp": {"packets", "kernels"},
    "tls": {"tcp", "capture", "kernels"},
    "handshakes": {"tls", "fields", "formatting", "kernels"},
    "protocols": {"handshakes", "tls", "tcp", "capture", "fields", "kernels"},
    "tables": {
        "formatting",
        "places",
        "protocols",
        "handshakes",
        "tls",
        "tcp",
        "packets",
        "capture",
        "fields",
        "kernels",
    },
    "transfer": {"tables", "protocols", "tls", "tcp", "packets", "kernels"},
    "dissector": {"transfer", "tables", "protocols", "tls", "tcp", "packets", "capture", "kernels"},
    "reading": {"dissector", "tables", "packets", "capture", "fields", "kernels", "time_range"},
    "parallel": {"reading", "dissector", "tables", "places", "tls", "tcp", "packets", "capture", "kernels"},
    "following": {"parallel", "reading", "dissector", "transfer", "tables", "tcp", "packets", "capture", "kernels"},
    "cli": {
        "following",
        "parallel",
        "reading",
        "dissector",
        "tables",
        "protocols",
        "handshakes",
        "tcp",
        "capture",
        "formatting",
        "places",
        "kernels",
    },
    "api": {"cli", "reading", "dissector", "handshakes", "capture", "parallel", "tables", "places", "time_range"},
    "__init__": set(),
}
"""The rooms, and the modules that lie beside them, with the rooms before them that they take from."""


@cache
def nodes(module: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))))


def imports(module: str) -> Iterator[str]:
    """The modules of the dissector that a module imports, also where it does so in a function."""
    for node in nodes(module):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(NAME):
            below = (node.module or "").removeprefix(NAME).removeprefix(".")
            for alias in node.names:
                full = f"{below}.{alias.name}".removeprefix(".")
                yield full if full in MODULES or f"{full}.__init__" in MODULES else below


def test_imports_go_along_the_way_of_the_data() -> None:
    wrong = set()
    for module in MODULES:
        room = module.split(".", maxsplit=1)[0]
        known = MAY_IMPORT[room] | {room}
        wrong |= {f"{module} imports {name}" for name in imports(module) if name.split(".")[0] not in known}
    assert sorted(wrong) == []


def written(module: str) -> Iterator[tuple[str, str]]:
    """The declarations and columns that a module writes, as `matrix[row, Declaration.COLUMN] = ...`."""
    for node in nodes(module):
        targets = [node.target] if isinstance(node, ast.AugAssign) else getattr(node, "targets", [])
        stores = [each for target in targets for each in ast.walk(target) if isinstance(each, ast.Subscript)]
        for each in [each for store in stores for each in ast.walk(store.slice) if isinstance(each, ast.Attribute)]:
            if isinstance(each.value, ast.Name):
                yield each.value.id, each.attr


def writers(module: str) -> Iterator[tuple[str, str]]:
    """The columns of state that a module writes, and who may write them: a room, or a module in it."""
    seen = vars(importlib.import_module(f"{NAME}.{module}".removesuffix(".__init__")))
    for owner, name in written(module):
        declaration = seen.get(owner)
        if isinstance(declaration, type) and issubclass(declaration, Matrix) and not issubclass(declaration, Records):
            room = declaration.__module__.removeprefix(f"{NAME}.").split(".")[0]
            yield f"{owner}.{name}", declaration.columns[name].by or room


def test_columns_are_written_by_their_writers_alone() -> None:
    """Their declaration names the writer; without that, it is its own room. Records belong to whoever makes them."""
    found = [(module, column, writer) for module in MODULES for column, writer in writers(module)]
    assert len(found) > 100
    assert [each for each in found if not f"{each[0]}.".startswith(f"{each[2]}.")] == []
