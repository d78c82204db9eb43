-- One row per subscription of a stream whose credit is used up to the end of the capture, while its stream goes on.
-- None without rows of flow_control.
with spells as (
    -- times without credit: the last one of each subscription, and how long the one before took
    select connection_id, subscription_id, start_ts_ns, end_ts_ns, start_packet,
        start_capture,
        max(duration_ns) over (partition by connection_id, subscription_id order by start_ts_ns nulls last
            rows between unbounded preceding and 1 preceding) as longest_ns,
        row_number() over (partition by connection_id, subscription_id order by start_ts_ns desc nulls last) as place
    from flow_control where cause = 'stream-credit'
),
places as (
    select d.connection_id, d.subscription_id, n.server, n.client, d.stream, count(*) as chunks,
        max_by(d.last_offset, d.frame_no) as last_offset, max(d.ts_ns) as ts_ns
    from stream_deliveries d join endpoints n on d.connection_id = n.connection_id
    where d.last_offset is not null
    group by d.connection_id, d.subscription_id, n.server, n.client, d.stream
),
stopped as (
    select n.server, coalesce(n.vhost, '') as vhost, n.client, p.connection_id, p.subscription_id, p.stream, p.chunks,
        p.last_offset, s.start_ts_ns as ts_ns, e.last_ts_ns - s.start_ts_ns as silent_ns, s.start_packet as packet,
        s.start_capture as capture
    from spells s
    join endpoints n on s.connection_id = n.connection_id
    join servers e on n.server = e.server
    join places p on s.connection_id = p.connection_id and s.subscription_id = p.subscription_id
    where s.place = 1 and s.start_ts_ns >= p.ts_ns and n.closed_ts_ns is null and coalesce(n.ending, 'open') = 'open'
        and s.end_ts_ns is null and e.last_ts_ns - s.start_ts_ns >= 5000000000
        -- who gives credit seldom may give it later
        and e.last_ts_ns - s.start_ts_ns > 5.0 * coalesce(s.longest_ns, 0)
),
ahead as (
    select s.connection_id, s.subscription_id, max(p.last_offset) as last_offset, max_by(p.client, p.last_offset) as client
    from stopped s
    join places p on s.server = p.server and s.stream = p.stream and s.connection_id <> p.connection_id
    group by s.connection_id, s.subscription_id
),
stored as (
    select s.connection_id, s.subscription_id, cast(sum(coalesce(c.records, 1)) as bigint) as records
    from stopped s
    join endpoints n on s.server = n.server
    join confirms c on c.connection_id = n.connection_id and c.stream = s.stream and c.publish_ts_ns > s.ts_ns
    where c.outcome = 'ack' and not coalesce(c.deduplicated, false)
    group by s.connection_id, s.subscription_id
)
select s.client, s.server, s.vhost, s.connection_id, s.subscription_id, s.stream, s.chunks, s.silent_ns,
    case when coalesce(a.last_offset - s.last_offset, 0) > coalesce(t.records, 0) then a.last_offset - s.last_offset
        else t.records end as behind,
    case when a.last_offset > s.last_offset then a.client end as other, s.ts_ns, s.packet, s.capture
from stopped s
left join ahead a on s.connection_id = a.connection_id and s.subscription_id = a.subscription_id
left join stored t on s.connection_id = t.connection_id and s.subscription_id = t.subscription_id
where a.last_offset > s.last_offset or t.records > 0
