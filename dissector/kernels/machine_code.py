"""Machine code that numba made of kernels: kept in files, and called without numba.

To load numba and have it bring what it compiled before takes 0.4 s; to load the code itself takes 0.05 s. What is kept
is the function that numba makes for Python to call: of C, with the arguments as a tuple.
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
"""A function of C that takes arguments from Python: what it belongs to, the tuple of those by position, others."""
_engines: list[llvm.ExecutionEngine] = []
"""They own the code in memory."""


class Code(NamedTuple):
    """The machine code of a kernel for arguments of certain types: an object file, and what is in it.

    Attributes:
        octets: of the object file.
        entry: name of the function to call.
        environment: name of a pointer to an object with the constants that it makes objects of. Kernels have none; that
            it is not null is all that is looked at.
        needs: names that the code takes for known.
    """

    octets: bytes
    entry: str
    environment: str
    needs: list[str]

    @classmethod
    def of(cls, compiled: Any) -> "Code":
        """What numba compiled: one of the overloads of a function."""
        _, _, (octets, bitcode) = compiled.library.serialize_using_object_code()
        module = llvm.parse_bitcode(bitcode)
        named = [*module.functions, *module.global_variables]
        needs = sorted({n.name for n in named if n.is_declaration and not n.name.startswith("llvm.")})
        return cls(octets, compiled.fndesc.llvm_cpython_wrapper_name, compiled.fndesc.env_name, needs)

    @classmethod
    def read(cls, octets: bytes) -> "Code | None":
        """What `written` made; None where the hash is wrong. What is no such tuple raises anything."""
        if octets[:32] != hashlib.sha256(octets[32:]).digest():
            return None
        return cls(*marshal.loads(octets[32:]))  # noqa: S302 - it is code to be run anyhow

    def written(self) -> bytes:
        """The code as it is kept, with its hash in front: broken code is not to be run."""
        octets = marshal.dumps(tuple(self))
        return hashlib.sha256(octets).digest() + octets

    def load(self) -> Any:
        """The function to call, an `ENTRY`; None where a name is not known: one that it needs, or one of its own."""
        _introduce()
        machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        # Of a name that it does not know, LLVM would end the process.
        if not all(llvm.address_of_symbol(name) for name in self.needs):
            return None
        engine.add_object_file(llvm.ObjectFileRef.from_data(self.octets))
        engine.finalize_object()
        environment, entry = engine.get_global_value_address(self.environment), engine.get_function_address(self.entry)
        if not (environment and entry):
            return None
        _engines.append(engine)
        ctypes.c_void_p.from_address(environment).value = id(_engines)
        return ENTRY(entry)


@cache
def host() -> str:
    """The processor that code is made for."""
    features = ""
    with suppress(RuntimeError):  # LLVM cannot tell them of all processors: numba then uses none
        features = llvm.get_host_cpu_features().flatten()
    return f"{sys.platform} {llvm.get_host_cpu_name()} {features}"


@cache
def _introduce() -> None:
    """Make known to LLVM what compiled code calls by name: helpers of numba's, and objects of Python."""
    with suppress(RuntimeError):  # since llvmlite 0.45 this is done by itself, and an error
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
    """The addresses of numba's helpers: one of its modules, which is taken without the rest."""
    package = find_spec("numba")
    spec = PathFinder.find_spec("numba._helperlib", package.submodule_search_locations) if package else None
    if spec is None or spec.loader is None:
        raise ImportError("numba is not installed")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    helpers: dict[str, int] = module.c_helpers
    return helpers
