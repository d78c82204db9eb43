"""The walks of AMQP 0-10."""

from amqpscope.pipelines.amqp010 import session_joins
from amqpscope.pipelines.amqp010.consumed import SubscribedQueues
from amqpscope.pipelines.amqp010.message_credit import MessageCredit
from amqpscope.pipelines.amqp010.rpcs import Rpcs
from amqpscope.pipelines.amqp010.session_commands import SessionCommands
from amqpscope.pipelines.amqp010.session_errors import SessionErrors
from amqpscope.pipelines.amqp010.session_statistics import SessionStatistics
from amqpscope.pipelines.model.members import Members, OverConnections, OverKeys


def _of_sessions(table: str, of: str) -> OverKeys:
    fields, order = session_joins.schema_of(table), session_joins.ORDER
    return OverKeys(of, (table,), fields, session_joins.KEY, order, lambda *_: session_joins.Joins(table), shares=True)


MEMBERS = Members(
    (
        OverConnections(Rpcs),
        OverConnections(SessionStatistics),
        OverConnections(SessionCommands),
        OverConnections(SessionErrors),
        OverConnections(MessageCredit),
        OverConnections(SubscribedQueues),
    ),
    tuple(_of_sessions(table, of) for table, of in session_joins.JOINED.items()),
)
