-- One row per broker that refused connections for a limit: whose connections were open then, as far as the capture shows.
-- None without rows of endpoints.
with refused as (
    select server, max(first_ts_ns) as ts_ns from endpoints where handshake_outcome = 'connection-limit' group by server
),
held as (
    select n.server, n.client, count(*) as connections, count(*) filter (where n.closed_ts_ns is null) as unclosed
    from endpoints n join refused r on n.server = r.server
    where n.frames > 0 and n.first_ts_ns <= r.ts_ns and (n.handshake_outcome = 'ok' or n.handshake_outcome = 'begun-before')
        and (n.closed_ts_ns > r.ts_ns or (n.closed_ts_ns is null and coalesce(n.ending, 'open') = 'open'))
    group by n.server, n.client
),
ranked as (
    select server, client, connections, unclosed,
        cast(sum(connections) over (partition by server) as bigint) as open,
        row_number() over (partition by server order by connections desc nulls last, client nulls last) as place
    from held
)
select server, client, connections, unclosed, open from ranked where place = 1
