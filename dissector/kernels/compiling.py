"""Compile kernels: numba types a kernel and the kernels that it calls, LLVM makes one object file of them all.

Numba alone optimises a kernel again in each kernel that calls it, and makes machine code and wrappers for each of
them. Here only the kernel that Python calls is linked with the others, optimised and translated, once.

What this rests on of numba and llvmlite is in `docs/kernels.md`.
"""

import ast
import gc
import inspect
import textwrap
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numba
import numpy as np
from numba.core.codegen import AOTCodeLibrary, AOTCPUCodegen
from numba.core.compiler import CompilerBase
from numba.core.compiler_machinery import PassManager
from numba.core.registry import CPUDispatcher, CPUTarget, cpu_target
from numba.core.typed_passes import (
    AnnotateTypes,
    InlineOverloads,
    IRLegalization,
    NativeLowering,
    NoPythonBackend,
    NopythonTypeInference,
    PreLowerStripPhis,
)
from numba.core.untyped_passes import FixupArgs, GenericRewrites, IRProcessing, ReconstructSSA, TranslateByteCode

from amqpscope.dissector.kernels import declared
from amqpscope.dissector.kernels.library import environment_of
from amqpscope.dissector.kernels.machine_code import Code, Processor

PASSES = (
    TranslateByteCode, FixupArgs, IRProcessing, ReconstructSSA, GenericRewrites, NopythonTypeInference, AnnotateTypes,
    PreLowerStripPhis, InlineOverloads, IRLegalization, NativeLowering, NoPythonBackend,
)  # fmt: skip
"""What numba does with a kernel; its other passes rewrite what kernels do not contain."""
INDEX = "__unsigned"
"""Name of the function that makes an index unsigned."""
IS_OFF: bool = bool(numba.config.DISABLE_JIT)
"""Whether NUMBA_DISABLE_JIT is set: numba compiles nothing."""
_WRAPPERS = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def compiled(
    function: Callable[..., Any], arguments: Sequence[Any], name: str, processors: Iterable[Processor]
) -> list[Code]:
    """Return the machine code of a kernel for arguments of these types, as a function called `name`, per processor."""
    dispatcher = _dispatcher(function, is_entry=True)
    signature = tuple(map(dispatcher.typeof_pyval, arguments))
    with _seldom_collected():
        dispatcher.compile(signature)
    made = dispatcher.overloads[signature]
    return [_translated(made, name, processor) for processor in processors]


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """Let the collector of garbage look seldom: numba makes many that stay, and this took a quarter of the time."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, 20, before[2])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def called_by_numba(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function like an `ENTRY` that numba itself compiles and calls, in this process alone."""
    if IS_OFF:
        return lambda _, arguments, __: declared.interpreted(function, arguments)
    dispatcher = _plain(function)
    return lambda _, arguments, __: dispatcher(*arguments)


# ------------------------------------------------------------------------------------------------------------- numba


class _Library(AOTCodeLibrary):  # type: ignore[misc]
    """The LLVM module of one kernel, without those that it calls."""

    def finalize(self) -> None:
        """Leave linking and optimisation to `_translated`."""
        self._raise_if_finalized()
        self._finalized = True

    def _optimize_functions(self, module: llvm.ModuleRef) -> None:
        module.data_layout = self._codegen._data_layout


class _Codegen(AOTCPUCodegen):  # type: ignore[misc]
    _library_class = _Library


class _Target(CPUTarget):  # type: ignore[misc]
    """Numba's target, but for what makes code: what numba has of its own is shared."""

    typing_context = cpu_target.typing_context
    target_context = cpu_target.target_context.subtarget(
        _internal_codegen=_Codegen("kernels"),
        aot_mode=True,  # no address of this process is in the code
        get_executable=lambda library, *_: library,  # no kernel is code yet; the library stands for it
    )


class _Pipeline(CompilerBase):  # type: ignore[misc]
    def define_pipelines(self) -> list[PassManager]:
        manager = PassManager("kernels")
        for each in PASSES:
            manager.add_pass(each, each.__name__)
        manager.finalize()
        return [manager]


class _Dispatcher(CPUDispatcher):  # type: ignore[misc]
    """Types a kernel for the arguments of each call in other kernels."""

    targetdescr = _Target("cpu")

    def get_call_template(self, args: Iterable[Any], kws: dict[str, Any]) -> Any:
        """Compile once for all constants: LLVM propagates them where it inlines the kernel."""
        return super().get_call_template(tuple(map(numba.types.unliteral, args)), kws)

    def add_overload(self, cres: Any) -> None:
        """Keep what was compiled; there is nothing that Python can call."""
        self.overloads[tuple(cres.signature.args)] = cres


@cache
def _dispatcher(function: Callable[..., Any], is_entry: bool = False) -> _Dispatcher:
    """Return what types a kernel; of one that Python calls, it makes a function for calls from Python as well."""
    function = declared.source(function)
    options = _options(function) | _WRAPPERS | {"no_cpython_wrapper": not is_entry}
    return _Dispatcher(
        _rewritten(function, _dispatcher), targetoptions=options | {"nopython": True}, pipeline_class=_Pipeline
    )


@cache
def _plain(function: Callable[..., Any]) -> Any:
    function = declared.source(function)
    return numba.njit(**_options(function))(_rewritten(function, _plain))


def _options(function: Callable[..., Any]) -> dict[str, Any]:
    """Return how numba compiles a kernel.

    Bounds checks are on, because bytes from the wire determine many indexes; they are off for `proven` kernels.
    """
    return declared.FLAGS | {"boundscheck": not declared.is_proven(function)}


# -------------------------------------------------------------------------------------------------------------- LLVM


def _translated(made: Any, name: str, processor: Processor) -> Code:
    """Return the object file of what numba compiled, linked with all that it calls."""
    module = made.library._final_module.clone()
    for library in _called(made.library, {}):
        module.link_in(library._final_module.clone())
    machine = processor.machine()
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    entry, environment = made.fndesc.llvm_cpython_wrapper_name, made.fndesc.env_name
    module.get_function(entry).name = name
    module.get_global_variable(environment).name = environment_of(name)
    for function in module.functions:
        if not function.is_declaration and function.name != name:
            function.linkage = "internal"
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    named = [*module.functions, *module.global_variables]
    needs = sorted({n.name for n in named if n.is_declaration and not n.name.startswith("llvm.")})
    return Code(machine.emit_object(module), name, needs)


def _called(library: _Library, found: dict[_Library, None]) -> dict[_Library, None]:
    for each in library._linking_libraries:
        if each not in found:
            found[each] = None
            _called(each, found)
    return found


# ------------------------------------------------------------------------------------------------------------- source


class _Namespace(dict[str, Any]):
    """The global names of a kernel, as its compiled form sees them.

    Kernels among them are made when numba asks for them.
    """

    def __init__(self, names: dict[str, Any], made: Callable[[Callable[..., Any]], Any]) -> None:
        super().__init__(names)
        self.made = made
        self.kernels = {name: value for name, value in names.items() if declared.is_kernel(value)}
        for name, module in names.items():
            if isinstance(module, types.ModuleType):
                self.kernels |= {_joined(name, n): v for n, v in vars(module).items() if declared.is_kernel(v)}
        for name, value in names.items():
            if name in self.kernels:
                del self[name]
            elif value is declared.u64 or value is declared.i64:
                self[name] = np.uint64 if value is declared.u64 else np.int64
        self[INDEX] = np.uint64

    def __missing__(self, name: str) -> Any:
        self[name] = self.made(self.kernels[name])
        return self[name]


class _Rewriter(ast.NodeTransformer):
    """Make all indexes unsigned; turn names of columns into numbers, and `module.kernel` into plain names."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        owner = self._named(node.value)
        if declared.is_declaration(owner):
            return ast.Constant(getattr(owner, node.attr))
        if isinstance(node.value, ast.Name) and isinstance(owner, types.ModuleType):
            if declared.is_kernel(getattr(owner, node.attr, None)):
                return ast.Name(_joined(node.value.id, node.attr), ast.Load())
        return node

    def _named(self, node: ast.expr) -> Any:
        """Return what a global name, or `module.name`, stands for; None: neither."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id)
        if isinstance(node, ast.Attribute) and isinstance(module := self._named(node.value), types.ModuleType):
            return getattr(module, node.attr, None)
        return None

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        made = [p if isinstance(p, ast.Constant) else _unsigned(p) for p in parts]
        node.slice = ast.Tuple(made, ast.Load()) if isinstance(node.slice, ast.Tuple) else made[0]
        return node


def _unsigned(argument: ast.expr) -> ast.expr:
    return ast.Call(ast.Name(INDEX, ast.Load()), [argument], [])


def _joined(module: str, name: str) -> str:
    """Return the name by which a compiled kernel finds another one that its source calls as `module.name`."""
    return f"{module}__{name}"


def _rewritten(function: Callable[..., Any], made: Callable[[Callable[..., Any]], Any]) -> types.FunctionType:
    """Return a kernel for numba, made from its source; `made` returns what stands for the kernels that it calls."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    (definition,) = tree.body
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list = []
    for argument in definition.args.args:
        argument.annotation = None
    definition.returns = None
    ast.increment_lineno(tree, function.__code__.co_firstlineno - 1)
    rewritten = ast.fix_missing_locations(_Rewriter(function.__globals__).visit(tree))
    module = compile(rewritten, function.__code__.co_filename, "exec")
    code = next(code for code in module.co_consts if isinstance(code, types.CodeType))
    copy = types.FunctionType(code, _Namespace(function.__globals__, made), function.__name__, function.__defaults__)
    copy.__module__ = function.__module__
    copy.__qualname__ = function.__qualname__
    return copy
