-- One row per message whose publish was seen: when it was confirmed, delivered first, settled last.
with deliveries as (
    select t.publish_connection_id as connection_id, t.publish_frame_no as frame_no, t.publish_ts_ns, t.publish_capture,
        t.publish_packet, t.exchange, t.routing_key, t.matched_by, t.deliver_ts_ns, t.deliver_connection_id,
        t.deliver_capture, t.deliver_packet,
        coalesce(s.queue, case when s.exchange = '' then s.routing_key end) as queue, s.settle_ts_ns, s.settle_packet, s.outcome, s.redelivered,
        row_number() over (partition by t.publish_connection_id, t.publish_frame_no
            order by t.deliver_ts_ns nulls last, t.deliver_connection_id nulls last, t.deliver_frame_no nulls last,
                t.matched_by nulls last, t.exchange nulls last, t.routing_key nulls last) as nth
    from transits t
    left join settlements s on t.deliver_connection_id = s.connection_id and t.deliver_frame_no = s.deliver_frame_no
    where t.publish_frame_no is not null and t.latency_ns is not null
),
delivered as (
    select connection_id, frame_no, count(*) as deliveries, count(*) filter (where redelivered) as redeliveries,
        max(settle_ts_ns) as settle_ts_ns, max(settle_packet) as settle_packet,
        count(*) filter (where outcome = 'nack' or outcome = 'reject') as rejected,
        count(*) filter (where outcome = 'none') as unsettled
    from deliveries group by connection_id, frame_no
),
keys as (
    select connection_id, publish_frame_no as frame_no from confirms
    where publish_frame_no is not null and stream is null and not coalesce(incomplete, false)
    union all
    select connection_id, frame_no from deliveries where nth = 1
),
messages as (
    select connection_id, frame_no from keys group by connection_id, frame_no
)
select m.connection_id, m.frame_no as publish_frame_no, n.client,
    coalesce(c.exchange, f.exchange) as exchange, coalesce(c.routing_key, f.routing_key) as routing_key,
    c.message_id, c.publish_seq,
    coalesce(c.publish_ts_ns, f.publish_ts_ns) as publish_ts_ns,
    coalesce(c.publish_capture, f.publish_capture) as publish_capture,
    coalesce(c.publish_packet, f.publish_packet) as publish_packet,
    c.confirm_ts_ns, c.confirm_packet, c.outcome as confirm_outcome, c.latency_ns as confirm_ns,
    coalesce(d.deliveries, 0) as deliveries, coalesce(d.redeliveries, 0) as redeliveries,
    f.queue, f.deliver_ts_ns as first_deliver_ts_ns, f.deliver_capture, f.deliver_packet, f.matched_by,
    f.deliver_ts_ns - f.publish_ts_ns as time_in_queue_ns,
    d.settle_ts_ns as last_settle_ts_ns, d.settle_packet as last_settle_packet,
    coalesce(d.rejected, 0) as rejected, coalesce(d.unsettled, 0) as unsettled
from messages m
left join endpoints n on m.connection_id = n.connection_id
left join confirms c on m.connection_id = c.connection_id and m.frame_no = c.publish_frame_no and c.stream is null
left join delivered d on m.connection_id = d.connection_id and m.frame_no = d.frame_no
left join deliveries f on m.connection_id = f.connection_id and m.frame_no = f.frame_no and f.nth = 1
