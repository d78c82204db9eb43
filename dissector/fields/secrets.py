"""Logins whose lengths lie: where a secret may be in any text, no text is shown."""

import functools
import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from amqpscope.dissector.fields.arrow import array, picked
from amqpscope.dissector.fields.decoding import REDACTED, Decoded
from amqpscope.spec.model import Protocol

NAME = re.compile(r"[\w.@-]{0,64}", re.ASCII)
"""What the names of SASL mechanisms and locales look like."""


@functools.lru_cache(maxsize=32)
def with_secrets(protocol: Protocol) -> NDArray[np.bool_]:
    """Return which methods have a secret argument; the last entries, for indexes below 0, are of no method."""
    return np.array([*(any(a.secret for a in m.fields) for m in protocol.methods), False, False])


def hide(fields: Decoded, secret: NDArray[np.bool_], names: tuple[str, ...]) -> None:
    """Redact all texts of malformed records with a secret: where lengths lie, the secret may be in any of them.

    Args:
        fields: of the records; its columns are replaced.
        secret: which records have a secret.
        names: columns that hold names.
    """
    if not secret.any():
        return
    bad = np.zeros(len(secret), np.bool_)
    bad[fields.problem_row] = True
    rest = np.flatnonzero(secret & ~bad)
    for texts in (picked(fields.columns[name], rest) for name in names):
        bad[rest] |= np.array([not NAME.fullmatch(text or "") for text in texts], np.bool_)
    bad &= secret
    if bad.any():
        for name, column in fields.columns.items():
            if pa.types.is_string(column.type) and column.null_count < len(column):
                fields.columns[name] = pc.if_else(pc.and_(array(bad), column.is_valid()), REDACTED, column)
