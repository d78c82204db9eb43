from amqpscope.pipelines.connections.violations import Violations
from tests.pipelines.scenario import TICK, Connection
from tests.pipelines.walks.properties import check_made


def test_what_a_peer_sent_against_its_protocol_has_a_row() -> None:
    c = Connection()
    c.client("basic.publish")
    at = c.break_rules(True, "frame-type-unknown", "frame type 9")
    c.lose(False)
    c.server("basic.ack")
    other = Connection()
    other.client("basic.publish")
    row = {"from_client": True, "code": "frame-type-unknown", "detail": "frame type 9", "frame_no": at}
    check_made(Violations, [(c, [row | {"ts_ns": at * TICK}]), (other, [])], "ts_ns")
