"""The walks of streams."""

from amqpscope.pipelines.model.members import Members, OverConnections, OverKeys, Resolved
from amqpscope.pipelines.stream import stored, stream_deliveries, stream_lag
from amqpscope.pipelines.stream.rpcs import Rpcs
from amqpscope.pipelines.stream.stream_confirms import StreamConfirms
from amqpscope.pipelines.stream.stream_credit import StreamCredit
from amqpscope.pipelines.stream.stream_deliveries import StreamOffsets
from amqpscope.pipelines.stream.stream_lag import StreamLag
from amqpscope.pipelines.stream.stream_metadata import StreamMetadata

MEMBERS = Members(
    (
        OverConnections(Rpcs),
        OverConnections(StreamConfirms),
        OverConnections(StreamCredit),
        OverConnections(StreamOffsets),
        OverConnections(StreamMetadata),
    ),
    (
        OverKeys(
            stream_deliveries.PARTIAL, StreamLag.tables, stream_deliveries.OFFSETS, stream_lag.KEY,
            (*stream_lag.KEY, *stream_lag.ORDER), lambda compiled, *_: StreamLag(compiled), alone=StreamLag,
        ),
    ),
    {"confirms": Resolved(stored.PARTIAL, stored.SCHEMA, stored.undecided, stored.verdicts, stored.resolve)},
)  # fmt: skip
