"""Our own documents: complete, consistent, quick to load, and with the names that others rely on."""

import dataclasses
import pickle
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from amqpscope import spec

FOLDER = Path(spec.__file__).parent
# Names that notebooks and checks rely on: none of them may go.
MUST_HAVE = {
    "captures": "capture",
    "connections": """
        connection_id protocol client_ip client_port server_ip server_port first_ts_ns last_ts_ns packets bytes vantage
        rtt_ns handshake_stage handshake_outcome closed_by reply_code reply_text vhost user mechanism channel_max
        frame_max heartbeat lost_bytes retransmitted_bytes""",
    "amqp091_frames": "channel channel_epoch frame_type method size is_partial missing",
    "stream_frames": "command version is_response correlation_id response_code size",
    "amqp010_frames": "channel track segment_type method size session command_id",
    "messages": """
        protocol kind channel channel_epoch exchange routing_key consumer_tag delivery_tag redelivered mandatory no_ack
        publish_seq body_size body_hash is_partial first_frame_no headers trace_id stream publisher_id
        publisher_reference publisher_epoch subscription_id offset chunk_id chunk_ts_ns session""",
    "tcp_windows": "connection_id from_client kind start_ts_ns end_ts_ns packets",
    "tcp_events": "connection_id from_client kind packet ts_ns of_packet bytes late_ns ttl",
    "tcp_acks": "connection_id from_client first_frame_no last_frame_no packet ts_ns",
    "anomalies": "code severity channel offset detail",
    "confirms": """
        connection_id channel channel_epoch publish_seq exchange routing_key publish_ts_ns confirm_ts_ns outcome
        multiple returned reply_code ended_by end_ts_ns latency_ns records deduplicated request_acked_ts_ns""",
    "settlements": """
        connection_id channel channel_epoch consumer_tag queue delivery_tag deliver_ts_ns settle_ts_ns outcome multiple
        requeue ended_by end_ts_ns latency_ns request_acked_ts_ns""",
    "rpcs": """
        connection_id channel channel_epoch request response request_ts_ns latency_ns outcome reply_code reply_text
        queue request_acked_ts_ns""",
    "commands": """
        connection_id channel channel_epoch from_client session command_id method sent_ts_ns answer_ts_ns outcome
        reply_code ended_by end_ts_ns latency_ns""",
    "channel_errors": """
        connection_id channel channel_epoch from_client method reply_code reply_text failed_method queue exchange
        frame_no capture packet ts_ns""",
    "transits": """
        publish_connection_id deliver_connection_id exchange routing_key publish_ts_ns deliver_ts_ns latency_ns
        matched_by""",
    "calls": """
        correlation_id reply_to request_connection_id request_packet answer_connection_id answer_packet latency_ns
        evidence ended_by""",
    "flow_control": """
        connection_id channel channel_epoch consumer_tag cause start_ts_ns end_ts_ns duration_ns side evidence
        reason""",
    "stream_metadata": "connection_id stream response_code",
    "stream_credit": "connection_id subscription_id stream event granted used balance zero_since_ts_ns",
    "stream_deliveries": "connection_id subscription_id stream chunk_id last_offset age_ns stream_offset lag_records",
    "heartbeats": "connection_id from_client negotiated_s longest_silence_ns missed",
    "failures": """
        code severity came_up client_ip server_ip server_port vhost user connections cause connection_id first_ts_ns
        latest_ts_ns every_ns""",
    "latency_summary": "metric grouping count failed censored p50_ns p90_ns p99_ns p999_ns p9999_ns max_ns",
    "latency_buckets": "metric grouping bucket low_ns high_ns count",
    "endpoints": "connection_id client server vhost user protocol first_ts_ns last_ts_ns",
    "gaps": "connection_id from_client code bytes frame_no since_ts_ns ts_ns capture packet",
    "violations": "connection_id from_client code detail frame_no packet ts_ns",
    "tcp_delays": "connection_id from_client kind start_ts_ns end_ts_ns duration_ns bytes packet of_packet",
    "deaths": "connection_id frame_no packet ts_ns message_id queue reason count",
    "tcp_causes": "client connection_id from_client kind delays total_ns bytes explained explained_ns others_ns",
    "time_spent": "connection_id client wall_ns unknown_ns network_ns broker_ns client_ns idle_ns captured_near",
    "operations": "connection_id frame_no channel channel_epoch method queue exchange max_length overflow",
    "published": "connection_id channel channel_epoch exchange routing_key ts_ns count bytes first_packet last_packet",
    "unconfirmed": "connection_id channel frame_no packet ts_ns exchange routing_key message_id",
    "routes": "exchange exchange_type routing_key arguments queue from_ts_ns to_ts_ns",
    "routed": "server vhost exchange routing_key queue from_ts_ns to_ts_ns",
    "clients": "client server connections publishes deliveries",
    "channels": "client connection_id channel channel_epoch publishes deliveries prefetch",
    "consumers": "client connection_id channel channel_epoch consumer_tag queue prefetch deliveries full_share",
    "queues": "queue server vhost ins outs left_over wait_p50_ns wait_max_ns",
    "exchanges": "exchange server vhost type publishes keys",
    "topology": "edge client exchange routing_key queue consumer_tag messages",
    "rates": "ts_ns width_ns grouping publishes confirms deliveries",
    "occupancy": "connection_id channel channel_epoch consumer_tag ts_ns level low high last bound oldest_ns",
    "lifecycles": "connection_id publish_frame_no publish_packet confirm_packet deliver_packet time_in_queue_ns",
    "findings": "code severity party connection_id channel queue exchange client count of at_least first_packet text",
    "rules": "code state reason",
    "refusals": "client exchange routing_key queue publishes refused",
    "exclusives": "queue owner ended_ts_ns",
    "returns": "client exchange routing_key count publishes",
    "paces": "client connection_id channel channel_epoch publishes alone waited_ns paused_ns",
    "round_trips": "client server connection_id channel channel_epoch requests waited_ns first_ts_ns last_ts_ns",
    "commits": "client server connection_id channel channel_epoch publishes commits alone waited_ns",
    "counts": "server vhost client queue ts_ns message_count consumer_count packet",
    "backlogs": "server vhost queue since_ts_ns until_ts_ns duration_ns messages single_active_consumer",
    "servers": "server last_ts_ns",
    "covered": "server last_ts_ns",
    "undelivered": "server vhost queue ins outs messages max_length message_ttl_ms consumers",
    "orphaned": "server vhost queue connection_id gone_ts_ns left_over",
    "holders": "server client connections unclosed open",
    "requeued": "server vhost queue client times others again most most_id ended attempts",
    "unbound": "client server vhost exchange routing_key messages bindings bound_key bound_queue bound_packet",
    "republished": "server vhost queue into_queue client messages most",
    "dead_paths": "connection_id from_client since_ts_ns",
    "cuts": "connection_id quiet_ns closed_by",
    "late": "connection_id asked request frame_no since_ts_ns until_ts_ns latency_ns since_packet until_packet",
    "stalls": "server since_ts_ns until_ts_ns connections gave_up first_packet",
    "stopped_subscriptions": "client server vhost connection_id subscription_id stream chunks credits silent_ns behind",
    "changes": "connection_id frame_no method queue exchange outcome ts_ns done_ts_ns",
    "deletions": "queue exchange client ts_ns until_ts_ns packet capture",
    "begun": "connection_id channel channel_epoch consumer_tag publishes waits held_min held_max",
    "crashes": "client server vhost queue message_id connections others",
    "unbound_queues": "client server vhost queue exchange siblings waited_ns",
    "rebindings": "client server vhost queue exchange routing_key bound_key deliveries messages",
    "unbindings": "client server vhost queue exchange routing_key bound_key consumer messages",
    "one_at_a_time": "connection_id channel channel_epoch consumer_tag waits",
    "lost_subscriptions": "client server stream connection_id other deleter deleted_packet gone_ns rest_ns",
    "redeliveries": "server queue client messages most is_back first_packet last_packet",
    "closed_windows": "client server connection_id times total_ns first_ts_ns last_ts_ns",
    "rereads": "client server stream connection_id times first_offset again records not_stored",
    "slow_workers": "connection_id channel channel_epoch consumer_tag others others_p50_ns",
    "unanswered": "client server connection_id exchange routing_key queue requests answers taken taker least_ns",
    "unsettled": "client server connection_id consumer_tag queue unsettled full_since_ts_ns until_ts_ns",
    "too_late": "client server vhost queue owner messages requests caller",
    "blocks": "server reason connections longest_ns late outside_p99_ns",
}
LEADING = "connection_id frame_no capture packet ts_ns ts first_capture first_packet first_ts_ns from_client"
PROPERTIES = """
    content_type content_encoding headers delivery_mode priority correlation_id reply_to expiration message_id timestamp
    type user_id app_id cluster_id"""
PAIRS = {
    "confirms": ("publish", "confirm"),
    "settlements": ("deliver", "settle"),
    "rpcs": ("request", "response"),
    "commands": ("sent", "answer"),
    "transits": ("publish", "deliver"),
    "flow_control": ("start", "end"),
}


def column_names(table):
    return [c.name for c in spec.tables()[table].columns]


def whole(name):
    """A table with the columns of its protocol's fields."""
    table = spec.tables()[name]
    return table.with_methods(spec.load(table.methods_of)) if table.methods_of else table


def test_tables_are_all_there_with_the_columns_that_must_be():
    assert list(spec.tables()) == list(MUST_HAVE)
    for table, names in MUST_HAVE.items():
        assert set(names.split()) <= set(column_names(table)), table
    for table in ("amqp091_frames", "stream_frames", "amqp010_frames", "messages", "anomalies"):
        assert " ".join(column_names(table)).startswith(LEADING)
    for table, ends in PAIRS.items():
        for end in ends:
            assert {f"{end}_frame_no", f"{end}_capture", f"{end}_packet"} <= set(column_names(table)), table


@pytest.mark.parametrize("table", MUST_HAVE)
def test_tables_are_sound(table):
    columns = whole(table).columns
    names = [c.name for c in columns]
    assert len(set(names)) == len(names)
    for column in columns:
        assert column.type in {"int64", "int32", "bool", "string", "binary", "timestamp", "double"}
        assert column.doc.endswith(".")
        assert "\n" not in column.doc
        if column.name.endswith("_ns"):
            assert (column.type, column.unit) == ("int64", "ns"), column.name
        assert (column.name == "ts") == (column.type == "timestamp")


def test_columns_of_one_name_have_one_type():
    types = {}
    for table in spec.tables().values():
        if table.name == "stream_frames":
            continue  # numbers of its own, where AMQP has text: correlation_id
        for column in whole(table.name).columns:
            if (table.name, column.name) == ("amqp010_frames", "code"):
                continue  # of session.detached and message.reject a number, elsewhere ours and text
            assert types.setdefault(column.name, column.type) == column.type, (table.name, column.name)


def test_columns_of_methods():
    columns = spec.load().method_columns()
    assert columns["delivery_tag"] == "int64"
    assert columns["no_wait"] == "bool"
    assert columns["reply_code"] == "int32"
    assert columns["arguments"] == columns["queue"] == "string"
    assert not any("reserved" in name for name in columns)
    assert not columns.keys() & set(column_names("amqp091_frames"))
    assert list(columns)[:3] == ["version_major", "version_minor", "server_properties"]
    assert list(spec.load().property_columns()) == PROPERTIES.split()
    messages = {c.name: c.type for c in spec.tables()["messages"].columns}
    assert spec.load().property_columns().items() <= messages.items()


def test_protocol_is_sound():
    protocol = spec.load()
    assert [(m.class_id, m.id) for m in protocol.methods] == sorted({(m.class_id, m.id) for m in protocol.methods})
    for method in protocol.methods:
        assert protocol.method(method.full_name) is protocol.by_id(method.class_id, method.id) is method
        assert method.doc.endswith(".")
        assert method.from_client or method.from_server
        for name in method.responses:
            answer = protocol.method(name)
            assert answer.synchronous or name == "channel.flow-ok", name
            assert (method.from_client, method.from_server) == (answer.from_server, answer.from_client), name
        for field in method.fields:
            assert field.reserved == (field.column is None) == (not field.doc)
            assert field.wire_name in (field.name.replace("_", "-"), "nowait")
    for header in protocol.headers:
        assert len(header.data) == 8
        assert header.data.startswith(b"AMQP")


def test_extensions_are_marked_throughout():
    for method in spec.load().methods:
        if method.extension:
            assert all(f.extension == method.extension for f in method.fields), method.full_name
    for cls in spec.load().classes:
        assert cls.extension is None or all(m.extension == cls.extension for m in cls.methods)


def test_secrets():
    secret = {(m.full_name, f.name) for m in spec.load().methods for f in m.fields if f.secret}
    assert secret == {
        ("connection.start-ok", "response"),
        ("connection.secure-ok", "response"),
        ("connection.update-secret", "new_secret"),
    }


def test_anomalies_are_sound():
    for code, anomaly in spec.anomalies().items():
        assert code == anomaly.code
        assert all(word.isalnum() and word.islower() for word in code.split("-"))
        assert anomaly.severity in {"note", "warning", "error"}
        assert anomaly.doc.endswith(".")


@pytest.mark.parametrize("name", ["amqp-0-9-1", "amqp-0-10"])
def test_every_document_says_where_it_is_from_and_has_no_keys_that_nobody_reads(name):
    document = tomllib.loads((FOLDER / f"{name}.toml").read_text())
    assert document["provenance"]
    known = {f.name for f in dataclasses.fields(spec.Method)} | {"from"}
    for cls in document["class"]:
        assert cls.keys() <= {"name", "id", "doc", "extension", "properties", "method", "domain", "struct"}
        for method in cls["method"]:
            assert method.keys() <= known
            for field in method.get("fields", []):
                assert field.keys() <= {"name", "domain", "type", "reserved", "secret", "extension", "doc"}


def test_unknown_names():
    assert spec.names() == ["amqp-0-9-1", "amqp-0-10", "rabbitmq-stream"]
    with pytest.raises(spec.SpecError, match="no such protocol; known are amqp-0-9-1"):
        spec.load("amqp-2-0")
    for lookup in (lambda: spec.load().method("no.such"), lambda: spec.load().by_id(1, 1)):
        with pytest.raises(KeyError):
            lookup()


def test_records_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.load().name = "other"
    assert not hasattr(spec.load().methods[0], "__dict__")


def test_a_protocol_travels_between_processes():
    copy = pickle.loads(pickle.dumps(spec.load()))
    assert copy == spec.load()
    assert copy.method("basic.publish") == copy.by_id(60, 40)


def test_loading_is_quick_and_imports_little():
    code = (
        "import sys; from time import process_time; before = set(sys.modules);"
        "t = process_time(); from amqpscope import spec; a = process_time();"
        "assert not {'argparse', 'xml', 'difflib', 'textwrap'} & (set(sys.modules) - before);"
        "spec.load(); spec.tables(); spec.anomalies(); print(a - t, process_time() - a)"
    )
    best = [1.0, 1.0]
    for _ in range(3):
        ran = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=FOLDER.parent
        )
        best = [min(pair) for pair in zip(best, map(float, ran.stdout.split()), strict=True)]
    assert best[0] < 0.12, "import"
    assert best[1] < 0.12, "all documents"
