"""Which documents there are: those beside this module, and those that plug-ins of the dissector bring.

A plug-in is an entry point of the group `amqpscope.protocols`, such as `gizmo = "gizmo.dissecting:PROTOCOL"`. The
specification of its protocol lies beside that module under the protocol's name, here `gizmo/gizmo.toml`. Beside the
protocol it may describe, under `table`, `anomaly`, `handshake` and `messages`, what else the plug-in adds.
"""

import functools
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

from amqpscope.errors import near, reason
from amqpscope.spec.model import SpecError

F = TypeVar("F", bound=Callable[..., Any])

GROUP = "amqpscope.protocols"
"""Entry points of protocols."""
FOLDER = Path(__file__).parent
BUILT_IN = ("amqp-0-9-1", "amqp-0-10", "rabbitmq-stream")
OLDER = ("amqp-0-9", "amqp-0-8", "amqp-0-10-draft")
"""Older versions of AMQP 0-9-1: each is laid over another document, and says what is different."""

_added: dict[str, Path] = {}


def add(document: Path) -> None:
    """Add the document of a further protocol, named after the file without its suffix.

    What was loaded before is loaded anew when it is asked for again.
    """
    _added[document.stem] = document
    for cached in _caches:
        cached.cache_clear()


def remove(name: str) -> None:
    """Forget the document of a protocol that was added."""
    add(_added.pop(name))
    del _added[name]


def names() -> tuple[str, ...]:
    """Return the names of the protocols that are described, ours first."""
    return (*BUILT_IN, *_brought(), *(name for name in _added if name not in _brought()))


def path_of(name: str) -> Path:
    """Return where the document of a protocol is.

    Raises:
        SpecError: there is none of this name.
    """
    if name in BUILT_IN + OLDER:
        return FOLDER / f"{name}.toml"
    path = _added.get(name) or _brought().get(name)
    if path is None:
        raise SpecError(
            f"{name}: no such protocol; known are {', '.join(names() + OLDER)}{near(name, names() + OLDER)}"
        )
    return path


def plug_ins(part: str) -> Iterator[Any]:
    """Yield the parts of this name in the documents of plug-ins."""
    for path in (_brought() | _added).values():
        document = read(path)
        if part in document:
            yield document[part]


@functools.cache
def generation() -> object:
    """Return an object that changes when a document is added, so that caches are rebuilt."""
    return object()


@functools.cache
def read(path: Path) -> dict[str, Any]:
    """Return a document.

    Raises:
        SpecError: it is not there, or no TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {reason(error)}") from error
    except ValueError as error:
        raise SpecError(f"{path}: no TOML: {error}") from error


@functools.cache
def _brought() -> dict[str, Path]:
    """Return the documents of installed plug-ins by protocol; a plug-in without one fails when it is used."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - it imports much
    from importlib.util import find_spec  # noqa: PLC0415

    found = {}
    for entry in entry_points(group=GROUP):
        package = find_spec(entry.module)
        if package is not None and package.origin:
            path = Path(package.origin).parent / f"{entry.name}.toml"
            if path.exists():
                found[entry.name] = path
    return found


def caching(function: F) -> F:
    """Keep what a function makes of documents, until one is added."""
    cached = functools.cache(function)
    _caches.append(cached)
    return cast(F, cached)


_caches: list[Any] = [generation]
