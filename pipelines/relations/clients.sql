-- One row per client: all connections of one name (a client is name, product and address where it gives no name).
with sent as (
    select connection_id, cast(sum(count) as bigint) as publishes, cast(sum(bytes) as bigint) as bytes
    from published group by connection_id
),
answered as (
    select connection_id, count(*) filter (where outcome = 'ack') as confirms,
        count(*) filter (where outcome = 'nack') as nacks, count(*) filter (where returned) as returns,
        count(*) filter (where outcome = 'none') as unanswered
    from confirms where not coalesce(incomplete, false) group by connection_id
),
got as (
    select connection_id, count(*) filter (where kind = 'deliver') as deliveries,
        count(*) filter (where kind = 'get') as gets,
        count(*) filter (where outcome = 'ack' or outcome = 'nack' or outcome = 'reject') as settlements
    from settlements where not coalesce(incomplete, false) group by connection_id
),
read as (
    select connection_id, cast(sum(records) as bigint) as records
    from stream_deliveries where chunk_type = 0 group by connection_id
),
stopped as (
    select connection_id, cast(sum(duration_ns) as bigint) as blocked_ns
    from flow_control where cause = 'connection-blocked' group by connection_id
),
addresses as (
    select client, server, client_ip from endpoints group by client, server, client_ip
),
places as (
    select client, server, count(*) as addresses from addresses group by client, server
)
select n.client, n.server, min(n.product) as product, min(n.version) as version, min(n.platform) as platform,
    max(a.addresses) as addresses, count(*) as connections,
    count(*) filter (where n.severity = 'error' or n.severity = 'warning') as troubled,
    cast(coalesce(sum(s.publishes), 0) as bigint) as publishes,
    cast(coalesce(sum(s.bytes), 0) as bigint) as published_bytes,
    cast(coalesce(sum(c.confirms), 0) as bigint) as confirms,
    cast(coalesce(sum(c.nacks), 0) as bigint) as nacks,
    cast(coalesce(sum(c.returns), 0) as bigint) as returns,
    cast(coalesce(sum(c.unanswered), 0) as bigint) as unanswered,
    cast(coalesce(sum(coalesce(g.deliveries, 0) + coalesce(r.records, 0)), 0) as bigint) as deliveries,
    cast(coalesce(sum(g.settlements), 0) as bigint) as settlements,
    cast(coalesce(sum(g.gets), 0) as bigint) as gets,
    cast(coalesce(sum(b.blocked_ns), 0) as bigint) as blocked_ns,
    min(n.first_ts_ns) as first_ts_ns, max(n.last_ts_ns) as last_ts_ns
from endpoints n
left join sent s on n.connection_id = s.connection_id
left join answered c on n.connection_id = c.connection_id
left join got g on n.connection_id = g.connection_id
left join read r on n.connection_id = r.connection_id
left join stopped b on n.connection_id = b.connection_id
left join places a on n.client = a.client and n.server = a.server
group by n.client, n.server
