"""The structure of all packages: imports go one way, modules and kernels are short, and CONTRIBUTING maps them."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from amqpscope import pipelines
from amqpscope.pipelines.model import protocols

ROOT = Path(__file__).parents[1]
PACKAGES = ("spec", "dissector", "pipelines", "dashboards")
"""Each imports from those before it."""
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
}
LONGEST = 450
PARAMETERS, LINES = 10, 80
"""Of a kernel; one that has more says why: "... because ..."."""
MARKS = {"kernel", "proven"}
LONGEST_CELL = 200
"""Of a table in CONTRIBUTING: a row says what a room is for, not all that is in it."""


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


@cache
def imports(module: str) -> frozenset[str]:
    """The modules that a module imports, also where it does so in a function."""
    found = set()
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "amqpscope":
            base = (node.module or "").removeprefix("amqpscope").removeprefix(".")
            for alias in node.names:
                full = f"{base}.{alias.name}".removeprefix(".")
                found.add(full if full in MODULES else base)
    return frozenset(found)


def test_packages_import_from_those_before_them() -> None:
    wrong = set()
    for module in MODULES:
        known = {*PACKAGES[: PACKAGES.index(module.split(".", maxsplit=1)[0]) + 1], "errors", ""}
        wrong |= {f"{module} imports {name}" for name in imports(module) if name.split(".")[0] not in known}
    assert sorted(wrong) == []


def in_circles(graph: dict[str, set[str]]) -> list[str]:
    """The nodes that are in circles, or lead to one."""
    while free := {node for node, others in graph.items() if not others}:
        graph = {node: others - free for node, others in graph.items() if node not in free}
    return sorted(graph)


def test_no_module_imports_itself_by_a_detour() -> None:
    graph = {module: {name for name in imports(module) if name in MODULES} - {module} for module in MODULES}
    assert in_circles(graph) == []


def test_no_room_of_statistics_imports_itself_by_a_detour() -> None:
    folders = {module: module.split(".")[1] for module in MODULES if re.match(r"pipelines\.\w+\.", module)}
    graph: dict[str, set[str]] = {folder: set() for folder in folders.values()}
    for module, folder in folders.items():
        graph[folder] |= {folders[name] for name in imports(module) if name in folders} - {folder}
    assert in_circles(graph) == []


NAMES = re.compile(r"amqp-\d|rabbitmq-stream|\b(amqp\d+|stream)_frames\b|\bpipelines\.(amqp\d+|stream)\b")
"""Names of our protocols, their tables of frames and their folders."""
BY_NAME = {"pipelines.jobs", "pipelines"}
"""Their functions have the tables of protocols as parameters, or as an example."""


def test_statistics_name_no_protocol_outside_of_its_folder() -> None:
    folders = {brought.walks.split(".")[2] for brought in protocols.known().values()}
    others = [m for m in MODULES if m.startswith("pipelines") and m.split(".")[1:2] not in [[f] for f in folders]]
    assert len(others) > 50
    texts = {module: MODULES[module].read_text(encoding="utf-8") for module in others if module not in BY_NAME}
    example = "`amqpscope.pipelines.stream.statistics:STATISTICS`"
    assert [module for module, text in texts.items() if NAMES.search(text.replace(example, ""))] == []


def test_no_walk_of_a_protocol_imports_another_protocol() -> None:
    folders = {brought.walks.split(".")[2] for brought in protocols.known().values()}
    of = {module: module.split(".")[1] for module in MODULES if re.match(r"pipelines\.\w+\.", module)}
    mine = {module: folder for module, folder in of.items() if folder in folders}
    wrong = [(m, name) for m, folder in mine.items() for name in imports(m) if mine.get(name, folder) != folder]
    assert mine and wrong == []


def test_no_module_hides_a_function_of_its_package() -> None:
    """What a package offers by name is imported when it is asked for: a module of that name would be found instead."""
    offered = {f"pipelines.{name}" for name in pipelines.__all__}
    assert sorted(offered & MODULES.keys()) == []


def test_modules_are_short() -> None:
    lines = {module: len(path.read_text(encoding="utf-8").splitlines()) for module, path in MODULES.items()}
    assert {module: count for module, count in lines.items() if count > LONGEST} == {}


def kernels(module: str) -> Iterator[ast.FunctionDef]:
    for node in tree(module).body:
        if isinstance(node, ast.FunctionDef) and MARKS & {ast.unparse(each) for each in node.decorator_list}:
            yield node


def is_small(kernel: ast.FunctionDef) -> bool:
    return len(kernel.args.args) <= PARAMETERS and (kernel.end_lineno or 0) - kernel.lineno < LINES


def test_kernels_are_short_and_take_few_parameters() -> None:
    large = [(module, kernel) for module in MODULES for kernel in kernels(module) if not is_small(kernel)]
    assert large
    assert [(module, k.name) for module, k in large if " because " not in (ast.get_docstring(k) or "")] == []


def test_contributing_names_all_rooms() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rooms = {path.parent.relative_to(ROOT).as_posix() for path in MODULES.values()}
    named = {part for path in re.findall(r"`([\w/]+)/`", text) for part in path.split("/")}
    assert sorted(room for room in rooms if room.rsplit("/", maxsplit=1)[-1] not in named) == []
    cells = [cell for line in text.splitlines() if line.startswith("|") for cell in line.split("|")]
    assert [cell for cell in cells if len(cell) > LONGEST_CELL] == []
