-- One row per connection that ended without a close after the same silence as another one to that server, at another time.
with quiet as (
    select connection_id, client, server, quiet_ns, closed_by, closed_ts_ns, last_packet, last_capture
    from endpoints
    where quiet_ns > 0 and reply_code is null and 20 * coalesce(outlived_ns, 0) < 19 * quiet_ns
        and (closed_by like '%-rst' or closed_by = 'server-fin' or ending like 'path-lost%')
),
alike as (
    -- each is compared with the shortest and the longest silence of each tenth of a second
    select server, min(quiet_ns) as low_ns, max(quiet_ns) as high_ns, min(closed_ts_ns) as first_ts_ns,
        max(closed_ts_ns) as last_ts_ns
    from quiet group by server, quiet_ns - quiet_ns % nullif(100000000, 0)
)
select q.connection_id, q.client, q.server, q.quiet_ns, q.closed_by, q.closed_ts_ns, q.last_packet, q.last_capture
from quiet q join alike a on q.server = a.server
where ((20 * a.low_ns >= 19 * q.quiet_ns and 20 * a.low_ns <= 21 * q.quiet_ns)
        or (20 * a.high_ns >= 19 * q.quiet_ns and 20 * a.high_ns <= 21 * q.quiet_ns))
    and (a.last_ts_ns - q.closed_ts_ns > 1000000000 or q.closed_ts_ns - a.first_ts_ns > 1000000000)
group by q.connection_id, q.client, q.server, q.quiet_ns, q.closed_by, q.closed_ts_ns, q.last_packet, q.last_capture
