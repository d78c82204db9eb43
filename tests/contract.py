"""Tables, columns and words in columns that notebooks and acceptance checks rely on."""

LEADING = """
    connection_id int64, frame_no int64, capture string, packet int64, ts_ns int64, ts timestamp, first_capture string,
    first_packet int64, first_ts_ns int64, from_client bool
"""
CHANNEL = "connection_id int64, channel int32, channel_epoch int32"
ENDED = "ended_by string, end_ts_ns int64, latency_ns int64"
GROUP = "metric string, grouping string"

LED = ("amqp091_frames", "stream_frames", "amqp010_frames", "messages", "anomalies")
"""Tables that begin with the columns of `LEADING`."""

DISSECTED = {
    "captures": "capture string",
    "connections": """
        connection_id int64, protocol string, client_ip string, client_port int32, server_ip string, server_port int32,
        first_ts_ns int64, last_ts_ns int64, packets int64, bytes int64, vantage string, rtt_ns int64,
        handshake_stage string, handshake_outcome string, closed_by string, reply_code int32, reply_text string,
        vhost string, user string, mechanism string, channel_max int32, frame_max int64, heartbeat int32,
        lost_bytes int64, retransmitted_bytes int64
    """,
    "amqp091_frames": """
        channel int32, channel_epoch int32, frame_type string, method string, size int32, is_partial bool,
        missing int64, version_major int32, version_minor int32, server_properties string, mechanisms string,
        locales string, client_properties string, mechanism string, response string, locale string, challenge string,
        channel_max int32, frame_max int64, heartbeat int32, virtual_host string, reply_code int32, reply_text string,
        class_id int32, method_id int32, reason string, new_secret string, active bool, exchange string, type string,
        passive bool, durable bool, auto_delete bool, internal bool, exclusive bool, no_wait bool, arguments string,
        if_unused bool, if_empty bool, destination string, source string, routing_key string, queue string,
        message_count int64, consumer_count int64, prefetch_size int64, prefetch_count int32, global bool,
        consumer_tag string, no_local bool, no_ack bool, mandatory bool, immediate bool, delivery_tag int64,
        redelivered bool, multiple bool, requeue bool
    """,
    "stream_frames": """
        command string, version int32, is_response bool, correlation_id int64, response_code int32, size int32,
        publisher_id int32, publisher_reference string, stream string, subscription_id int32, offset int64,
        credit int32, chunk_id int64, mechanism string, frame_max int64, virtual_host string
    """,
    "amqp010_frames": """
        channel int32, track int32, segment_type string, method string, size int32, session string, command_id int64
    """,
    "messages": """
        first_frame_no int64, protocol string, kind string, channel int32, channel_epoch int32, exchange string,
        routing_key string, consumer_tag string, delivery_tag int64, redelivered bool, mandatory bool, no_ack bool,
        publish_seq int64, body_size int64, body_hash int64, is_partial bool, content_type string,
        content_encoding string, headers string, delivery_mode int32, priority int32, correlation_id string,
        reply_to string, expiration string, message_id string, timestamp int64, type string, user_id string,
        app_id string, cluster_id string, trace_id string, stream string, publisher_id int32,
        publisher_reference string, publisher_epoch int32, subscription_id int32, offset int64, chunk_id int64,
        chunk_ts_ns int64, session string
    """,
    "anomalies": "code string, severity string, channel int32, offset int64, detail string",
}
ANALYZED = {
    "confirms": f"""
        {CHANNEL}, publish_seq int64, exchange string, routing_key string, publish_ts_ns int64, confirm_ts_ns int64,
        outcome string, multiple bool, returned bool, reply_code int32, {ENDED}, records int64,
        publish_frame_no int64, publish_capture string, publish_packet int64,
        confirm_frame_no int64, confirm_capture string, confirm_packet int64
    """,
    "settlements": f"""
        {CHANNEL}, consumer_tag string, queue string, delivery_tag int64, deliver_ts_ns int64, settle_ts_ns int64,
        outcome string, multiple bool, requeue bool, {ENDED},
        deliver_frame_no int64, deliver_capture string, deliver_packet int64,
        settle_frame_no int64, settle_capture string, settle_packet int64
    """,
    "rpcs": f"""
        {CHANNEL}, request string, response string, request_ts_ns int64, latency_ns int64, outcome string,
        reply_code int32, request_frame_no int64, request_capture string, request_packet int64,
        response_frame_no int64, response_capture string, response_packet int64
    """,
    "transits": """
        publish_connection_id int64, deliver_connection_id int64, exchange string, routing_key string,
        message_id string, redelivered bool, attempt int32,
        publish_ts_ns int64, deliver_ts_ns int64, latency_ns int64, matched_by string,
        publish_frame_no int64, publish_capture string, publish_packet int64,
        deliver_frame_no int64, deliver_capture string, deliver_packet int64
    """,
    "flow_control": f"""
        {CHANNEL}, consumer_tag string, cause string, start_ts_ns int64, end_ts_ns int64, duration_ns int64,
        side string, evidence string, start_frame_no int64, start_capture string, start_packet int64,
        end_frame_no int64, end_capture string, end_packet int64
    """,
    "heartbeats": """
        connection_id int64, from_client bool, negotiated_s int32, longest_silence_ns int64, missed int64
    """,
    "latency_summary": f"""
        {GROUP}, count int64, failed int64, censored int64, p50_ns int64, p90_ns int64, p99_ns int64, p999_ns int64,
        p9999_ns int64, max_ns int64
    """,
    "latency_buckets": f"{GROUP}, bucket int64, low_ns int64, high_ns int64, count int64",
    "rates": """
        ts_ns int64, width_ns int64, grouping string, connection_id int64, client string, exchange string, queue string,
        publishes int64, confirms int64, nacks int64, deliveries int64, settlements int64, returns int64,
        redeliveries int64, gets int64, bytes int64
    """,
    "occupancy": f"""
        {CHANNEL}, consumer_tag string, ts_ns int64, width_ns int64, level string, low int64, high int64, last int64,
        bound int64, oldest_ns int64
    """,
    "lifecycles": """
        message_id string, publish_ts_ns int64, publish_packet int64, confirm_packet int64, deliver_packet int64,
        deliveries int64, time_in_queue_ns int64
    """,
    "topology": "client string, exchange string, routing_key string, queue string, consumer_tag string",
    "routes": """
        exchange string, exchange_type string, routing_key string, arguments string, queue string, from_ts_ns int64,
        to_ts_ns int64
    """,
    "findings": """
        code string, severity string, party string, connection_id int64, channel int32, queue string, exchange string,
        client string, count int64, of int64, at_least bool, first_ts_ns int64, last_ts_ns int64, first_capture string,
        first_packet int64, last_capture string, last_packet int64, filter string, text string, advice string
    """,
    "rules": "code string, state string, reason string",
    "clients": """
        client string, product string, version string, platform string, addresses int64, connections int64,
        publishes int64, confirms int64, nacks int64, returns int64, deliveries int64, settlements int64, gets int64,
        blocked_ns int64, first_ts_ns int64, last_ts_ns int64
    """,
    "queues": """
        queue string, vhost string, arguments string, declared_packet int64, ins int64, outs int64, left_over int64,
        wait_p50_ns int64, wait_max_ns int64, consumers int64, nacked int64, rejected int64
    """,
    "consumers": f"""
        client string, {CHANNEL}, consumer_tag string, queue string, prefetch int32, no_ack bool, deliveries int64,
        settlements int64, full_share double, settle_p50_ns int64, unsettled int64, ended_by string
    """,
    "channels": f"""
        client string, {CHANNEL}, opened_ts_ns int64, closed_ts_ns int64, closed_by string, confirm_mode bool,
        transactional bool, publishes int64, deliveries int64, gets int64, empty_gets int64, declares int64,
        requests int64, prefetch int32
    """,
    "exchanges": """
        exchange string, vhost string, type string, publishes int64, confirms int64, nacks int64, returns int64,
        keys int64
    """,
}

ENDINGS = "capture-end gap evicted channel-close connection-close discarded recover rollback"
WORDS = {
    ("connections", "protocol"): "amqp-0-9-1 amqp-0-10 rabbitmq-stream amqp-1.0 tls unknown",
    ("amqp091_frames", "frame_type"): "protocol-header method header body heartbeat",
    ("amqp010_frames", "segment_type"): "control command header body",
    ("messages", "kind"): "publish deliver get return",
    ("anomalies", "severity"): "note warning error",
    ("confirms", "outcome"): "ack nack none",
    ("confirms", "ended_by"): ENDINGS,
    ("confirms", "numbered_by"): "counted proven",
    ("settlements", "outcome"): "ack nack reject auto none unknown",
    ("settlements", "ended_by"): ENDINGS,
    ("rpcs", "outcome"): "ok error none",
    ("transits", "matched_by"): "message-id trace content ambiguous",
    ("flow_control", "cause"): "connection-blocked channel-flow prefetch stream-credit message-credit zero-window",
    ("flow_control", "evidence"): "proven possible",
    ("latency_summary", "metric"): "confirm settlement rpc transit",
    ("latency_buckets", "metric"): "confirm settlement rpc transit",
}
"""All words that these columns may hold; null aside."""
