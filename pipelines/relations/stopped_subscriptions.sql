-- One row per subscription of a stream whose credit is used up to the end of the capture, while its stream goes on.
-- None without rows of stream_deliveries.
with delivered as (
    select n.server, n.client, d.connection_id, d.subscription_id, d.stream, d.chunk_id, d.chunk_ts_ns, d.last_offset,
        d.frame_no, d.ts_ns, d.packet, d.capture,
        d.ts_ns - lag(d.ts_ns) over (partition by d.connection_id, d.subscription_id order by d.frame_no nulls last)
            as pause_ns
    from stream_deliveries d join endpoints n on d.connection_id = n.connection_id
    where d.last_offset is not null
),
places as (
    select connection_id, subscription_id, server, client, stream, count(*) as chunks,
        max_by(last_offset, frame_no) as last_offset, max(ts_ns) as ts_ns, max_by(packet, frame_no) as packet,
        max_by(capture, frame_no) as capture, max(pause_ns) as pause_ns
    from delivered group by connection_id, subscription_id, server, client, stream
),
spells as (
    -- times without credit: the last one of each subscription, and how long the one before took
    select connection_id, subscription_id, start_ts_ns, end_ts_ns, start_packet, start_capture,
        max(duration_ns) over (partition by connection_id, subscription_id order by start_ts_ns nulls last
            rows between unbounded preceding and 1 preceding) as longest_ns,
        row_number() over (partition by connection_id, subscription_id order by start_ts_ns desc nulls last) as place
    from flow_control where cause = 'stream-credit'
),
credits as (
    -- of those that began before the capture nobody knows the credit: they gave less than they used
    select connection_id, subscription_id, max(granted) as granted,
        max(case when event = 'unsubscribe' then 1 else 0 end) as is_over
    from stream_credit where subscription_epoch = 0 group by connection_id, subscription_id
),
since as (
    select p.connection_id, p.subscription_id, s.start_ts_ns as ts_ns, s.start_packet as packet,
        s.start_capture as capture, coalesce(s.longest_ns, 0) as longest_ns, cast(null as bigint) as credits
    from places p
    join spells s on s.connection_id = p.connection_id and s.subscription_id = p.subscription_id
    where s.place = 1 and s.start_ts_ns >= p.ts_ns and s.end_ts_ns is null
    union all
    select p.connection_id, p.subscription_id, p.ts_ns, p.packet, p.capture, p.pause_ns, c.granted
    from places p
    join credits c on c.connection_id = p.connection_id and c.subscription_id = p.subscription_id
    where p.chunks >= 10 and c.granted < p.chunks and c.is_over = 0
),
stopped as (
    select n.server, coalesce(n.vhost, '') as vhost, n.client, p.connection_id, p.subscription_id, p.stream, p.chunks,
        p.last_offset, s.credits, s.ts_ns, e.last_ts_ns - s.ts_ns as silent_ns, s.packet, s.capture
    from since s
    join endpoints n on s.connection_id = n.connection_id
    join servers e on n.server = e.server
    join places p on s.connection_id = p.connection_id and s.subscription_id = p.subscription_id
    where n.closed_ts_ns is null and coalesce(n.ending, 'open') = 'open' and e.last_ts_ns - s.ts_ns >= 5000000000
        -- who gives credit seldom may give it later
        and e.last_ts_ns - s.ts_ns > 5.0 * s.longest_ns
),
alike as (
    -- the names of streams may lie before the capture: a chunk has its number, and the time of its broker
    select m.connection_id, m.subscription_id, o.connection_id as other_id, o.subscription_id as other_subscription_id
    from stopped s
    join delivered m on s.connection_id = m.connection_id and s.subscription_id = m.subscription_id
    join delivered o on o.server = m.server and o.chunk_id = m.chunk_id and o.chunk_ts_ns = m.chunk_ts_ns
        and o.connection_id <> m.connection_id
    where s.stream is null
    group by m.connection_id, m.subscription_id, o.connection_id, o.subscription_id having count(*) >= 2
),
others as (
    select s.connection_id, s.subscription_id, p.last_offset, p.client
    from stopped s
    join places p on s.server = p.server and s.stream = p.stream and s.connection_id <> p.connection_id
    union all
    select a.connection_id, a.subscription_id, p.last_offset, p.client
    from alike a
    join places p on a.other_id = p.connection_id and a.other_subscription_id = p.subscription_id
),
ahead as (
    select connection_id, subscription_id, max(last_offset) as last_offset, max_by(client, last_offset) as client
    from others group by connection_id, subscription_id
),
stored as (
    select s.connection_id, s.subscription_id, cast(sum(coalesce(c.records, 1)) as bigint) as records
    from stopped s
    join endpoints n on s.server = n.server
    join confirms c on c.connection_id = n.connection_id and c.stream = s.stream and c.publish_ts_ns > s.ts_ns
    where c.outcome = 'ack' and not coalesce(c.deduplicated, false)
    group by s.connection_id, s.subscription_id
)
select s.client, s.server, s.vhost, s.connection_id, s.subscription_id, s.stream, s.chunks, s.credits, s.silent_ns,
    case when coalesce(a.last_offset - s.last_offset, 0) > coalesce(t.records, 0) then a.last_offset - s.last_offset
        else t.records end as behind,
    case when a.last_offset > s.last_offset then a.client end as other, s.ts_ns, s.packet, s.capture
from stopped s
left join ahead a on s.connection_id = a.connection_id and s.subscription_id = a.subscription_id
left join stored t on s.connection_id = t.connection_id and s.subscription_id = t.subscription_id
where a.last_offset > s.last_offset or t.records > 0
