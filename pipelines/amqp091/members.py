"""The walks of AMQP 0-9-1."""

from amqpscope.pipelines.amqp091.channel_errors import ChannelErrors
from amqpscope.pipelines.amqp091.confirms.confirms import Confirms
from amqpscope.pipelines.amqp091.confirms.numbers import Numbering
from amqpscope.pipelines.amqp091.consumed import ConsumedQueues
from amqpscope.pipelines.amqp091.flow_control import FlowControl
from amqpscope.pipelines.amqp091.operations import Operations
from amqpscope.pipelines.amqp091.rpcs import Rpcs
from amqpscope.pipelines.amqp091.settlements.settlements import Settlements
from amqpscope.pipelines.model.members import Members, OverConnections

MEMBERS = Members(
    (
        OverConnections(Confirms, Numbering),
        OverConnections(Settlements),
        OverConnections(Rpcs),
        OverConnections(FlowControl),
        OverConnections(ChannelErrors),
        OverConnections(Operations),
        OverConnections(ConsumedQueues),
    )
)
