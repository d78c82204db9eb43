"""Dataclasses of walks in plain Python as what `store.pack` writes, and back, as their annotations say."""

from __future__ import annotations

import types
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from operator import attrgetter
from typing import Any, get_args, get_origin, get_type_hints


def as_lists(value: Any) -> Any:
    """Return a value of dataclasses, lists, deques, sets, tuples, dicts, numbers and texts as lists of these."""
    if hasattr(value, "__dataclass_fields__"):
        return list(map(as_lists, _values(value.__class__)(value)))
    if isinstance(value, dict):
        return [[as_lists(key), as_lists(each)] for key, each in value.items()]
    if isinstance(value, list | tuple | deque | set):
        return [as_lists(each) for each in value]
    return value


def from_lists(kind: Any, value: Any) -> Any:
    """Return what `as_lists` made these lists of: a dataclass, or a type as it is annotated."""
    if is_dataclass(kind) and isinstance(kind, type):
        return kind(*map(from_lists, _kinds(kind), value))
    origin, of = get_origin(kind), get_args(kind)
    if origin in (dict, OrderedDict):
        return origin((from_lists(of[0], key), from_lists(of[1], each)) for key, each in value)
    if origin is tuple:
        return tuple(map(from_lists, of, value))
    if origin in (list, deque, set):
        return origin(from_lists(of[0], each) for each in value)
    if origin is types.UnionType and value is not None:
        return from_lists(of[0], value)
    return value


@cache
def _kinds(of: type) -> tuple[Any, ...]:
    return tuple(get_type_hints(of).values())


@cache
def _values(of: Any) -> Callable[[Any], tuple[Any, ...]]:
    names = [field.name for field in fields(of)]
    return attrgetter(*names) if len(names) > 1 else lambda value: (getattr(value, names[0]),)
