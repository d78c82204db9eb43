-- One row per queue and time between two counts of its messages in which some waited and none was delivered.
-- None without rows of operations.
-- What is in a stream does not wait: it stays there.
with counted as (
    select server, vhost, queue from counts where message_count > 0 and ts_ns is not null group by server, vhost, queue
),
moments as (
    select server, vhost, queue, ts_ns, connection_id, frame_no, message_count, packet, capture
    from counts where ts_ns is not null
    union all
    select n.server, coalesce(n.vhost, ''), s.queue, s.deliver_ts_ns, s.connection_id, s.deliver_frame_no,
        cast(null as bigint), cast(null as bigint), cast(null as string)
    from settlements s
    join endpoints n on s.connection_id = n.connection_id
    join counted q on n.server = q.server and coalesce(n.vhost, '') = q.vhost and s.queue = q.queue
    where s.deliver_ts_ns is not null
),
paired as (
    select server, vhost, queue, ts_ns, message_count, packet, capture,
        lag(ts_ns) over (partition by server, vhost, queue
            order by ts_ns nulls last, connection_id nulls last, frame_no nulls last) as since_ts_ns,
        lag(message_count) over (partition by server, vhost, queue
            order by ts_ns nulls last, connection_id nulls last, frame_no nulls last) as before,
        lag(packet) over (partition by server, vhost, queue
            order by ts_ns nulls last, connection_id nulls last, frame_no nulls last) as first_packet,
        lag(capture) over (partition by server, vhost, queue
            order by ts_ns nulls last, connection_id nulls last, frame_no nulls last) as first_capture
    from moments
),
kinds as (
    select n.server, coalesce(n.vhost, '') as vhost, o.queue,
        max(case when o.single_active_consumer then 1 else 0 end) as alone,
        max(case when o.queue_type = 'stream' or o.arguments like '%x-stream-offset%' then 1 else 0 end) as stream
    from operations o join endpoints n on o.connection_id = n.connection_id
    left join changes c on o.connection_id = c.connection_id and o.frame_no = c.frame_no
    where o.method = 'basic.consume' or (o.method = 'queue.declare' and c.frame_no is not null)
    group by n.server, coalesce(n.vhost, ''), o.queue
)
select p.server, p.vhost, p.queue, p.since_ts_ns, p.ts_ns as until_ts_ns, p.ts_ns - p.since_ts_ns as duration_ns,
    case when p.before < p.message_count then p.before else p.message_count end as messages,
    coalesce(k.alone = 1, false) as single_active_consumer,
    p.first_packet, p.first_capture, p.packet as last_packet, p.capture as last_capture
from paired p
left join kinds k on p.server = k.server and p.vhost = k.vhost and p.queue = k.queue
where p.message_count > 0 and p.before > 0 and coalesce(k.stream, 0) = 0
