"""Keep the machine code that numba makes of kernels in files, and call it without numba.

Loading numba and its own cache takes 0.4 s; loading the machine code takes 0.05 s. A file holds the function that numba
makes for calls from Python: a C function that takes the arguments as a tuple.
"""

import builtins
import ctypes
import hashlib
import marshal
import sys
from contextlib import suppress
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import Any, NamedTuple

import llvmlite.binding as llvm

ENTRY = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
"""A C function for calls from Python; it takes a closure, a tuple of positional arguments, and keyword arguments."""
_engines: list[llvm.ExecutionEngine] = []
"""Engines that own the code in memory."""


class Code(NamedTuple):
    """The machine code of a kernel for arguments of certain types.

    Attributes:
        data: bytes of the object file.
        entry: name of the function to call.
        environment: name of a pointer to an object with constants. Kernels have none, but the pointer must not be null.
        needs: external names that the code refers to.
    """

    data: bytes
    entry: str
    environment: str
    needs: list[str]

    @classmethod
    def of(cls, compiled: Any) -> "Code":
        """Return the code of what numba compiled: one of the overloads of a function."""
        _, _, (data, bitcode) = compiled.library.serialize_using_object_code()
        module = llvm.parse_bitcode(bitcode)
        named = [*module.functions, *module.global_variables]
        needs = sorted({n.name for n in named if n.is_declaration and not n.name.startswith("llvm.")})
        return cls(data, compiled.fndesc.llvm_cpython_wrapper_name, compiled.fndesc.env_name, needs)

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
        machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        # LLVM would end the process at an unknown name.
        if not all(llvm.address_of_symbol(name) for name in self.needs):
            return None
        engine.add_object_file(llvm.ObjectFileRef.from_data(self.data))
        engine.finalize_object()
        environment, entry = engine.get_global_value_address(self.environment), engine.get_function_address(self.entry)
        if not (environment and entry):
            return None
        _engines.append(engine)
        ctypes.c_void_p.from_address(environment).value = id(_engines)
        return ENTRY(entry)


@cache
def host() -> str:
    """Return the name of the processor that the code is made for."""
    features = ""
    with suppress(RuntimeError):  # LLVM does not know them of all processors: numba then uses none
        features = llvm.get_host_cpu_features().flatten()
    return f"{sys.platform} {llvm.get_host_cpu_name()} {features}"


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
