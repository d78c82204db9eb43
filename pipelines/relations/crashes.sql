-- One row per message that a client had in hand each time when its connections ended without a close: the first that it
-- had not settled.
-- None without rows of settlements.
with held as (
    select s.connection_id, n.client, n.server, coalesce(n.vhost, '') as vhost, n.closed_ts_ns,
        coalesce(s.queue, case when s.exchange = '' then s.routing_key end) as queue, s.deliver_frame_no as frame_no,
        s.deliver_ts_ns, s.deliver_packet as packet, s.deliver_capture as capture, n.last_packet, n.last_capture,
        row_number() over (partition by s.connection_id order by s.deliver_frame_no nulls last) as place,
        count(*) over (partition by s.connection_id) as others
    from settlements s join endpoints n on s.connection_id = n.connection_id
    where s.outcome = 'none' and s.ended_by = 'connection-close' and n.ending <> 'closed' and n.closed_ts_ns is not null
),
firsts as (
    -- by its publish, or else by its id
    select h.client, h.server, h.vhost, h.queue, h.connection_id, h.closed_ts_ns, h.deliver_ts_ns, h.packet, h.capture,
        h.last_packet, h.last_capture, h.others, t.message_id,
        lpad(cast(h.deliver_ts_ns as string), 20, '0') || lpad(cast(h.packet as string), 12, '0') || h.capture as begin,
        lpad(cast(h.closed_ts_ns as string), 20, '0') || lpad(cast(h.last_packet as string), 12, '0') || h.last_capture
            as until,
        case when t.publish_connection_id is null then t.message_id
            else cast(t.publish_connection_id as string) || ' ' || cast(t.publish_frame_no as string) end as message
    from held h
    join transits t on h.connection_id = t.deliver_connection_id and h.frame_no = t.deliver_frame_no
    where h.place = 1 and h.queue is not null
)
select client, server, vhost, queue, max(message_id) as message_id, count(*) as connections,
    cast(sum(others) as bigint) - count(*) as others, min(closed_ts_ns - deliver_ts_ns) as least_ns,
    max(closed_ts_ns - deliver_ts_ns) as most_ns, min(connection_id) as connection_id,
    min(deliver_ts_ns) as first_ts_ns, max(closed_ts_ns) as last_ts_ns,
    min_by(packet, begin) as first_packet, max_by(last_packet, until) as last_packet,
    min_by(capture, begin) as first_capture, max_by(last_capture, until) as last_capture
from firsts
where message is not null
group by client, server, vhost, queue, message
having count(*) >= 3
