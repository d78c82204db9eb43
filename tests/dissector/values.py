"""Field values of others (pamqp's, or the typed ones of the goldens) as this project's JSON says them."""

import json
import struct
from decimal import Decimal
from typing import Any

from tests.reference import Timestamp

Json = Any


def of_typed(typed: dict[str, Any]) -> Json:
    """A golden's `{"type": letter, ...}` as parsed JSON of ours."""
    kind: str = typed["type"]
    value: Any = typed.get("value")
    if kind == "F":
        return {_key(name): of_typed(item) for name, item in value.items()}
    if kind == "A":
        return [of_typed(item) for item in value]
    if kind == "D":
        return {"$decimal": str(Decimal(value).scaleb(-typed["scale"]))}
    if kind == "T":
        return {"$timestamp": value}
    if kind == "x":
        return {"$bytes": value}
    if "hex" in typed:
        return {"$string": typed["hex"]}
    if kind == "f":
        return struct.unpack(">f", struct.pack(">f", value))[0]
    if kind == "d":
        return float(value)
    if kind == "L" and value >= 1 << 63:
        return value - (1 << 64)  # signed to RabbitMQ, and so to us
    return value


def of_pamqp(value: Any) -> Json:
    """A value of pamqp as parsed JSON of ours; bytes may be a byte array or a string that is no text."""
    if isinstance(value, dict):
        return {_key(name): of_pamqp(item) for name, item in value.items()}
    if isinstance(value, list):
        return [of_pamqp(item) for item in value]
    if isinstance(value, Timestamp):
        return {"$timestamp": int(value)}
    if isinstance(value, Decimal):
        return {"$decimal": str(value)}
    if isinstance(value, bytes | bytearray):
        return {"$bytes": value.hex()}
    return value


def parsed(text: str | None) -> Json:
    """Our JSON; what stands for bytes and decimals in one spelling."""

    def plain(item: dict[str, Any]) -> dict[str, Any]:
        if item.keys() == {"$string"}:
            return {"$bytes": item["$string"]}
        if item.keys() == {"$decimal"}:
            return {"$decimal": str(Decimal(item["$decimal"]))}
        return item

    return json.loads(text, object_hook=plain) if text is not None else None


def same(ours: Json, theirs: Json) -> bool:
    """Whether two parsed values are equal, of the same types, floats of 32 bits in either precision."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        theirs = {"$bytes": theirs["$string"]} if theirs.keys() == {"$string"} else theirs
        return ours.keys() == theirs.keys() and all(same(ours[name], theirs[name]) for name in ours)
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    if isinstance(ours, float) and isinstance(theirs, float):
        return ours == theirs or struct.pack(">f", ours) == struct.pack(">f", theirs)
    return type(ours) is type(theirs) and bool(ours == theirs)


def _key(name: str) -> str:
    return "$" + name if name.startswith("$") else name
