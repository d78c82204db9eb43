-- One row per queue with messages that it delivered again at least four times: those whose publish was seen.
-- None without rows of transits.
with again as (
    -- a message may be in several queues: each has deliveries of its own
    select t.publish_connection_id, t.publish_frame_no, n.server, coalesce(n.vhost, '') as vhost,
        coalesce(s.queue, case when s.exchange = '' then s.routing_key end) as queue, n.client, s.connection_id,
        s.deliver_ts_ns, s.deliver_packet as packet, s.deliver_capture as capture,
        lpad(cast(s.deliver_ts_ns as string), 20, '0') || lpad(cast(s.deliver_packet as string), 12, '0')
            || s.deliver_capture as place,
        coalesce(s.requeue, false) and (s.outcome = 'nack' or s.outcome = 'reject') as is_back
    from transits t
    join settlements s on t.deliver_connection_id = s.connection_id and t.deliver_frame_no = s.deliver_frame_no
    join endpoints n on s.connection_id = n.connection_id
    where t.redelivered and t.publish_frame_no is not null and t.latency_ns is not null
),
messages as (
    select server, vhost, queue, case when queue is null then client end as reader, count(*) as times,
        count(*) filter (where is_back) as backs, min(client) as first_client, max(client) as last_client, min(connection_id) as connection_id,
        min(deliver_ts_ns) as first_ts_ns, max(deliver_ts_ns) as last_ts_ns,
        min(place) as first_place, max(place) as last_place, min_by(packet, place) as first_packet,
        max_by(packet, place) as last_packet, min_by(capture, place) as first_capture,
        max_by(capture, place) as last_capture
    from again
    group by publish_connection_id, publish_frame_no, server, vhost, queue, case when queue is null then client end
    having count(*) >= 4
)
select server, vhost, queue, case when min(first_client) = max(last_client) then min(first_client) end as client,
    count(*) as messages, max(times) + 1 as most, 10 * cast(sum(backs) as bigint) >= 9 * cast(sum(times) as bigint) as is_back,
    min(connection_id) as connection_id, min(first_ts_ns) as first_ts_ns, max(last_ts_ns) as last_ts_ns,
    min_by(first_packet, first_place) as first_packet, max_by(last_packet, last_place) as last_packet,
    min_by(first_capture, first_place) as first_capture, max_by(last_capture, last_place) as last_capture
from messages group by server, vhost, queue, reader
