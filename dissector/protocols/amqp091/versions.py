"""Which version with the frames of AMQP 0-9-1 is spoken in the middle of a connection, by arguments of its methods."""

from functools import cached_property
from struct import unpack_from

import numpy as np

from amqpscope.dissector.fields.decoding import Plan, decode
from amqpscope.dissector.kernels.arrays import Bytes, Ints
from amqpscope.dissector.kernels.kernel import call
from amqpscope.dissector.protocols.amqp091.boundary import KERNELS
from amqpscope.dissector.protocols.amqp091.layout import HEAD_BYTES, IDS_BYTES, METHOD, NAME, OVERHEAD, method_table
from amqpscope.dissector.protocols.registry import Context


class Arguments:
    """The arguments of a version's methods."""

    def __init__(self, context: Context, version: str) -> None:
        protocol = context.specification(version)
        self.compiled = context.compiled
        self.plan = Plan.of_methods(protocol)
        self.indexes = {(m.class_id, m.id): index for index, m in enumerate(protocol.methods)}

    def fit(self, data: Bytes, offset: int, size: int) -> bool:
        """Return whether the payload of a method frame is a method with just its arguments."""
        method = self.indexes.get(unpack_from(">HH", data.data, offset)) if size >= IDS_BYTES else None
        if method is None:
            return False
        begin, length, program = np.array([[offset + IDS_BYTES], [size - IDS_BYTES], [method]])
        found = decode(self.plan, data, begin, length, program, np.zeros(1, np.uint8), self.compiled)
        return not len(found.problem_row)


class VersionRecogniser:
    """Sees a version other than 0-9-1 by a method that it does not share, with arguments that no other version has.

    Args:
        context: of the stages.
        version: which to see.
        others: the versions that it may be taken for, besides 0-9-1.
    """

    def __init__(self, context: Context, version: str, others: tuple[str, ...]) -> None:
        self.context = context
        self.versions = (version, *others)

    def look(self, data: Bytes, begin: int, end: int, position: int, due: int) -> tuple[bool, int]:
        """Return whether these bytes are frames; see `registry.Recogniser`."""
        at: int = call(KERNELS.looks_like_frames, self.context.compiled, data, begin, end, self._methods)
        while 0 <= at <= end - OVERHEAD:
            kind, _, size = unpack_from(">BHI", data.data, at)
            if at + size + OVERHEAD > end:
                break
            fitting = [kind == METHOD and each.fit(data, at + HEAD_BYTES, size) for each in self._arguments]
            if fitting[0] and not any(fitting[1:]):
                return True, -1
            at += size + OVERHEAD
        return False, -1

    @cached_property
    def _methods(self) -> Ints:
        """The methods that 0-9-1 does not share."""
        names = self.versions[0], NAME
        own, shared = ({(m.class_id, m.id) for m in self.context.specification(name).methods} for name in names)
        return method_table(sorted(own - shared))

    @cached_property
    def _arguments(self) -> list[Arguments]:
        return [Arguments(self.context, version) for version in self.versions]
