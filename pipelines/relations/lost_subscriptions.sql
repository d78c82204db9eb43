-- One row per client that read a stream, was told that it is not available, and did not subscribe to it again, though it is.
-- None without rows of stream_metadata.
with readers as (
    select connection_id, stream, min(ts_ns) as ts_ns from stream_deliveries group by connection_id, stream
),
told as (
    select n.server, n.client, n.client_ip, m.connection_id, m.stream, m.ts_ns, m.packet, m.capture
    from stream_metadata m
    join endpoints n on m.connection_id = n.connection_id
    join readers d on m.connection_id = d.connection_id and d.ts_ns <= m.ts_ns and coalesce(d.stream, m.stream) = m.stream
    where m.command = 'metadata-update'
    group by n.server, n.client, n.client_ip, m.connection_id, m.stream, m.ts_ns, m.packet, m.capture
),
subscribed as (
    -- by the addresses of programs: one connection is closed, and another one opened
    select n.server, n.client, n.client_ip, r.stream, max(r.request_ts_ns) as ts_ns
    from rpcs r join endpoints n on r.connection_id = n.connection_id
    where r.request = 'subscribe' and r.outcome = 'ok' group by n.server, n.client, n.client_ip, r.stream
),
back as (
    select t.connection_id, t.stream, t.ts_ns,
        max(case when s.client_ip = t.client_ip or s.client = t.client then 1 else 0 end) as is_own,
        min(case when s.client_ip <> t.client_ip and s.client <> t.client then s.client end) as other
    from told t
    join subscribed s on t.server = s.server and t.stream = s.stream and s.ts_ns > t.ts_ns
    group by t.connection_id, t.stream, t.ts_ns
)
select t.client, t.server, t.stream, t.connection_id, b.other, d.client as deleter, d.packet as deleted_packet,
    d.until_ts_ns - d.ts_ns as gone_ns, e.last_ts_ns - t.ts_ns as rest_ns, t.ts_ns, t.packet, t.capture
from told t
join servers e on t.server = e.server
join back b on t.connection_id = b.connection_id and t.stream = b.stream and t.ts_ns = b.ts_ns
left join deletions d on t.server = d.server and t.stream = d.queue and d.ts_ns <= t.ts_ns
    and t.ts_ns - d.ts_ns < 1000000000
where b.is_own = 0 and b.other is not null
