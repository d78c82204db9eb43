-- One row per connection that ended without a close after the same silence as another one to that server, at another time.
with ended as (
    select connection_id, client, server, quiet_ns, closed_by, closed_ts_ns, last_packet, last_capture, ending, outlived_ns,
        (closed_ts_ns - closed_ts_ns % nullif(1000000000, 0)) as second_ts_ns,
        -- a thousandth of itself from one length of silence to the next
        cast(floor(1000 * ln(greatest(quiet_ns, 1))) as bigint) as length
    from endpoints
    where reply_code is null and closed_ts_ns is not null
        and (closed_by like '%-rst' or closed_by = 'server-fin' or ending like 'path-lost%')
),
seconds as (
    -- ends of connections that were up, the two after the shortest silences of each second
    select server, second_ts_ns, connection_id, coalesce(quiet_ns, 0) as quiet_ns,
        row_number() over (partition by server, second_ts_ns
            order by quiet_ns nulls first, connection_id nulls last) as place
    from ended where closed_by like 'server-%' and ending is not null
),
near as (
    select server, second_ts_ns, connection_id, quiet_ns from seconds where place <= 2
    union all
    select server, second_ts_ns - 1000000000, connection_id, quiet_ns from seconds where place <= 2
    union all
    select server, second_ts_ns + 1000000000, connection_id, quiet_ns from seconds where place <= 2
),
moments as (
    -- where the server ends several connections at once, whatever their silence, it is the server that ends
    select server, second_ts_ns, quiet_ns,
        row_number() over (partition by server, second_ts_ns order by quiet_ns nulls last, connection_id nulls last) as place
    from near
),
quiet as (
    select e.connection_id, e.client, e.server, e.quiet_ns, e.closed_by, e.closed_ts_ns, e.last_packet, e.last_capture, e.length
    from ended e left join moments m on e.server = m.server and e.second_ts_ns = m.second_ts_ns and m.place = 2
    where e.quiet_ns > 0 and 20.0 * coalesce(e.outlived_ns, 0) < 19.0 * e.quiet_ns
        and 3.0 * coalesce(m.quiet_ns, e.quiet_ns) >= 2.0 * e.quiet_ns
),
lengths as (
    select server, length, min(closed_ts_ns) as first_ts_ns, max(closed_ts_ns) as last_ts_ns
    from quiet group by server, length
),
alike as (
    -- the same but for a twentieth
    select server, length,
        min(first_ts_ns) over (partition by server order by length nulls last
            range between 49 preceding and 49 following) as first_ts_ns,
        max(last_ts_ns) over (partition by server order by length nulls last
            range between 49 preceding and 49 following) as last_ts_ns
    from lengths
)
select q.connection_id, q.client, q.server, q.quiet_ns, q.closed_by, q.closed_ts_ns, q.last_packet, q.last_capture
from quiet q join alike a on q.server = a.server and q.length = a.length
where a.last_ts_ns - q.closed_ts_ns > 1000000000 or q.closed_ts_ns - a.first_ts_ns > 1000000000
