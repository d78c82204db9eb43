"""Keep the machine code that numba makes of kernels in files, and call it without numba.

Loading numba and its own cache takes 0.4 s; loading the machine code takes 0.05 s. A file holds the function that numba
makes for calls from Python: a C function that takes the arguments as a tuple.
"""

import builtins
import ctypes
import hashlib
import marshal
from contextlib import suppress
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import Any, NamedTuple

import llvmlite.binding as llvm

from amqpscope.dissector.kernels.library import ENTRY, environment_of

_engines: list[llvm.ExecutionEngine] = []
"""Engines that own the code in memory."""


class Processor(NamedTuple):
    """What machine code is made for.

    Attributes:
        cpu: LLVM's name of the processor.
        features: its features, as LLVM writes them.
        is_shared: whether the code is for a shared library, not for `Code.load`.
    """

    cpu: str
    features: str
    is_shared: bool

    def machine(self) -> llvm.TargetMachine:
        """Return what makes the code."""
        _introduce()
        target = llvm.Target.from_default_triple()
        if self.is_shared:
            return target.create_target_machine(self.cpu, self.features, 3, "pic", "small")
        # What is loaded may lie anywhere; on x86, LLVM's loader handles static code only.
        reloc = "static" if target.name.startswith("x86") else "default"
        return target.create_target_machine(self.cpu, self.features, 3, reloc, "jitdefault", jit=True)


class Code(NamedTuple):
    """The machine code of a kernel for arguments of certain types.

    Attributes:
        data: bytes of the object file.
        name: name of the function to call.
        needs: external names that the code refers to.
    """

    data: bytes
    name: str
    needs: list[str]

    @classmethod
    def read(cls, data: bytes) -> "Code | None":
        """Return the code that `written` made; None when the hash is wrong. Any other tuple may raise any error."""
        if data[:32] != hashlib.sha256(data[32:]).digest():
            return None
        return cls(*marshal.loads(data[32:]))  # noqa: S302 - this code is going to run anyway

    def written(self) -> bytes:
        """Return the bytes to keep, which begin with a hash: damaged code must not run."""
        data = marshal.dumps(tuple(self))
        return hashlib.sha256(data).digest() + data

    def load(self) -> Any:
        """Return the function to call, an `ENTRY`; None when a name is unknown."""
        _introduce()
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), host().machine())
        # LLVM would end the process at an unknown name.
        if not all(llvm.address_of_symbol(name) for name in self.needs):
            return None
        engine.add_object_file(llvm.ObjectFileRef.from_data(self.data))
        engine.finalize_object()
        environment, entry = (
            engine.get_global_value_address(environment_of(self.name)),
            engine.get_function_address(self.name),
        )
        if not (environment and entry):
            return None
        _engines.append(engine)
        ctypes.c_void_p.from_address(environment).value = id(_engines)
        return ENTRY(entry)


@cache
def host() -> Processor:
    """Return this processor."""
    features = ""
    with suppress(RuntimeError):  # LLVM does not know them of all processors: numba then uses none
        features = llvm.get_host_cpu_features().flatten()
    return Processor(llvm.get_host_cpu_name(), features, is_shared=False)


@cache
def _introduce() -> None:
    """Tell LLVM the names that compiled code calls: numba's helpers, and Python's objects."""
    with suppress(RuntimeError):  # since llvmlite 0.45 this is automatic, and an error
        llvm.initialize()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    known = {f"numba_{name}": address for name, address in _helpers().items()}
    known["_Py_NoneStruct"] = id(None)
    classes = {name: value for name, value in vars(builtins).items() if isinstance(value, type)}
    known |= {f"PyExc_{name}": id(value) for name, value in classes.items() if issubclass(value, BaseException)}
    for name, address in known.items():
        llvm.add_symbol(name, address)


def _helpers() -> dict[str, int]:
    """Return the addresses of numba's helpers, from one of its modules that loads without the others."""
    package = find_spec("numba")
    spec = PathFinder.find_spec("numba._helperlib", package.submodule_search_locations) if package else None
    if spec is None or spec.loader is None:
        raise ImportError("numba is not installed")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    helpers: dict[str, int] = module.c_helpers
    return helpers
