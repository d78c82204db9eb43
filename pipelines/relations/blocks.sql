-- One row per broker and reason of connection.blocked, or channel.flow: who was blocked, how long, and what it did to confirms.
-- None without rows of flow_control.
with stops as (
    select n.server, case when f.cause = 'channel-flow' then 'it stopped channels (channel.flow)' else coalesce(f.reason, '') end as reason, f.connection_id, n.client, f.start_ts_ns,
        coalesce(f.end_ts_ns, n.last_ts_ns) as end_ts_ns, f.end_ts_ns is null as is_open,
        f.start_packet, f.end_packet, f.start_capture, f.end_capture,
        lpad(cast(f.start_ts_ns as string), 20, '0') || lpad(cast(f.start_packet as string), 12, '0') || f.start_capture as begin,
        lpad(cast(f.end_ts_ns as string), 20, '0') || lpad(cast(f.end_packet as string), 12, '0') || f.end_capture as until
    from flow_control f join endpoints n on f.connection_id = n.connection_id
    where f.cause = 'connection-blocked' or (f.cause = 'channel-flow' and f.side = 'server')
),
sums as (
    select server, reason, count(distinct connection_id) as connections, count(*) as blocks, min(client) as client,
        count(*) filter (where is_open) as unended, min(connection_id) as connection_id,
        max(end_ts_ns - start_ts_ns) as longest_ns, min(start_ts_ns) as first_ts_ns, max(end_ts_ns) as last_ts_ns,
        min_by(start_packet, begin) as first_packet, max_by(end_packet, until) as last_packet,
        min_by(start_capture, begin) as first_capture, max_by(end_capture, until) as last_capture
    from stops group by server, reason
),
marked as (
    -- a confirm waited inside a block where both were under way at some moment
    select n.server, c.connection_id, c.publish_frame_no, c.latency_ns,
        max(case when s.start_ts_ns < c.confirm_ts_ns and s.end_ts_ns > c.publish_ts_ns then s.reason end) as reason
    from confirms c
    join endpoints n on c.connection_id = n.connection_id
    join stops s on s.connection_id = c.connection_id
    where c.latency_ns >= 0
    group by n.server, c.connection_id, c.publish_frame_no, c.latency_ns
),
late as (
    select server, reason, count(*) filter (where latency_ns > 1000000000) as late, max(latency_ns) as latest_ns
    from marked where reason is not null group by server, reason
),
others as (
    select server, latency_ns,
        row_number() over (partition by server order by latency_ns nulls last) as place,
        count(*) over (partition by server) as confirms
    from marked where reason is null
),
outside as (
    select server, min(latency_ns) as outside_p99_ns from others where 100 * place >= 99 * confirms group by server
)
select s.server, s.reason, s.connections, s.blocks, s.unended, s.client, s.connection_id, s.longest_ns,
    s.first_ts_ns, s.last_ts_ns, s.first_packet, s.last_packet, s.first_capture, s.last_capture,
    coalesce(l.late, 0) as late, l.latest_ns, o.outside_p99_ns
from sums s
left join late l on s.server = l.server and s.reason = l.reason
left join outside o on s.server = o.server
