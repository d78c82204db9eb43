"""Values for the fields of AMQP 0-10 by hypothesis, and what columns have of them."""

import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from amqpscope.dissector.fields.decoding import REDACTED
from amqpscope.spec.model import Field
from tests.dissector.amqp010.wire import PROTOCOL

Row = dict[str, Any]
HEADS = {name for m in PROTOCOL.methods for name in m.entries}
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
RANGES = st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)), max_size=4)
MAPS = st.lists(st.tuples(TEXT, st.just("int32"), st.integers(-(2**31), 2**31 - 1)), max_size=3)
XIDS = st.fixed_dictionaries({}, optional={"format": st.integers(0, 2**32 - 1), "global_id": st.binary(max_size=9)})
GIVEN: dict[str, st.SearchStrategy[Any]] = {
    "bit": st.booleans(), "uint8": st.integers(0, 255), "uint16": st.integers(0, 2**16 - 1),
    "uint32": st.integers(0, 2**32 - 1), "sequence-no": st.integers(0, 2**32 - 1), "uint64": st.integers(0, 2**63 - 1),
    "datetime": st.integers(0, 2**63 - 1), "str8": TEXT, "str16": TEXT, "vbin8": TEXT.map(str.encode),
    "vbin16": TEXT.map(str.encode), "vbin32": TEXT.map(str.encode), "uuid": st.uuids(), "sequence-set": RANGES,
    "map": MAPS, "array": st.lists(TEXT, max_size=3).map(lambda items: ("str16", items)),
    "struct32": RANGES.map(lambda ranges: ("message.acquired", {"transfers": ranges})),
    "dtx.xid": XIDS, "message.reply-to": st.fixed_dictionaries({}, optional={"exchange": TEXT}),
}  # fmt: skip
SHOWN: dict[str, Callable[[Any], Any]] = {
    "uuid": str, "sequence-set": lambda v: [list(pair) for pair in v], "array": lambda v: v[1],
    "map": lambda v: {("$" + k if k.startswith("$") else k): n for k, _, n in v},
    "struct32": lambda v: {"$message.acquired": {"transfers": [list(pair) for pair in v[1]["transfers"]]}},
    "dtx.xid": lambda v: {k: {"$bytes": x.hex()} if k == "global_id" else x for k, x in v.items()},
    "message.reply-to": lambda v: v, "vbin8": bytes.decode, "vbin16": bytes.decode, "vbin32": bytes.decode,
}  # fmt: skip
"""What columns have of a value, JSON parsed; of what is not here the value itself."""
JSON = {"sequence-set", "array", "map", "struct32", "dtx.xid", "message.reply-to"}


def kind(item: Field) -> str:
    return item.domain if item.type == "struct" else item.type


def some(fields: tuple[Field, ...]) -> st.SearchStrategy[Row]:
    """Values for some of the fields; bits are always given."""
    bits = {f.name: GIVEN["bit"] for f in fields if f.type == "bit"}
    return st.fixed_dictionaries(bits, optional={f.name: GIVEN[kind(f)] for f in fields if f.type != "bit"})


def expected(fields: tuple[Field, ...], values: Row) -> Row:
    found = {f.column: (kind(f), values[f.name], f.secret) for f in fields if f.name in values}
    return {c: REDACTED if secret else SHOWN.get(k, lambda v: v)(v) for c, (k, v, secret) in found.items() if c}


def parsed(fields: tuple[Field, ...], row: Row) -> Row:
    texts = {f.column for f in fields if kind(f) in JSON}
    return {name: json.loads(held) if name in texts else held for name, held in row.items()}


OPERATIONS = st.one_of([st.tuples(st.just(m), some(m.fields), st.booleans()) for m in PROTOCOL.methods])
STRUCTS = {s.name: st.tuples(st.just(s), some(s.fields)) for s in PROTOCOL.structs if s.name in HEADS}
SEGMENTS = st.tuples(*[*STRUCTS.values()][:3]).flatmap(st.permutations) | st.sampled_from([*STRUCTS]).flatmap(
    lambda name: st.tuples(STRUCTS[name])
)
