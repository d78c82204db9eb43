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
ends as (
    select connection_id, end_ts_ns, max(reason) as reason from stops group by connection_id, end_ts_ns
),
moments as (
    -- blocks where they begin, confirms where they came; at one time the confirm is first
    select connection_id, start_ts_ns as ts_ns, 2 as turn, end_ts_ns, cast(null as bigint) as frame_no,
        cast(null as bigint) as publish_ts_ns, cast(null as bigint) as latency_ns
    from stops
    union all
    select c.connection_id, c.confirm_ts_ns, 1, cast(null as bigint), c.publish_frame_no, c.publish_ts_ns, c.latency_ns
    from confirms c join (select connection_id from stops group by connection_id) s on c.connection_id = s.connection_id
    where c.latency_ns >= 0
),
reached as (
    select connection_id, turn, publish_ts_ns, latency_ns,
        max(end_ts_ns) over (partition by connection_id
            order by ts_ns nulls last, turn nulls last, frame_no nulls last, end_ts_ns nulls last
            rows between unbounded preceding and current row) as until_ts_ns
    from moments
),
marked as (
    -- a confirm waited inside a block where both were under way at some moment: of those before it one ended later
    select n.server, r.latency_ns, e.reason
    from reached r join endpoints n on r.connection_id = n.connection_id
    left join ends e on r.connection_id = e.connection_id and r.until_ts_ns = e.end_ts_ns
        and r.until_ts_ns > r.publish_ts_ns
    where r.turn = 1
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
