-- One row per client and stream that it reads again from where it had been before, each time it subscribes.
-- None without rows of stream_deliveries.
with subscriptions as (
    select n.client, n.client_ip, n.server, coalesce(n.vhost, '') as vhost, d.stream, d.connection_id, d.subscription_id,
        d.subscription_epoch, min(d.chunk_id) as first_offset, max(d.last_offset) as last_offset,
        cast(sum(d.records) as bigint) as records, min(d.ts_ns) as first_ts_ns, max(d.ts_ns) as last_ts_ns,
        min_by(d.packet, d.frame_no) as packet, min_by(d.capture, d.frame_no) as capture
    from stream_deliveries d join endpoints n on d.connection_id = n.connection_id
    where d.stream is not null and d.last_offset is not null and d.subscription_epoch > 0
    group by n.client, n.client_ip, n.server, coalesce(n.vhost, ''), d.stream, d.connection_id, d.subscription_id,
        d.subscription_epoch
),
placed as (
    select client, client_ip, server, vhost, stream, connection_id, first_offset, last_offset, records, first_ts_ns, packet, capture,
        lag(last_offset) over (partition by client, client_ip, server, vhost, stream order by first_ts_ns nulls last,
            connection_id nulls last, subscription_id nulls last, subscription_epoch nulls last) as before,
        lag(last_ts_ns) over (partition by client, client_ip, server, vhost, stream order by first_ts_ns nulls last,
            connection_id nulls last, subscription_id nulls last, subscription_epoch nulls last) as until_ts_ns
    from subscriptions
),
missing as (
    select n.server, coalesce(n.vhost, '') as vhost, r.stream, count(*) as asked
    from rpcs r join endpoints n on r.connection_id = n.connection_id
    where r.request = 'query-offset' and r.outcome = 'error' group by n.server, coalesce(n.vhost, ''), r.stream
)
select p.client, p.server, p.vhost, p.stream, min(p.connection_id) as connection_id, count(*) as times,
    min(p.first_offset) as first_offset, max(p.first_offset) as last_offset,
    cast(sum(case when p.before < p.last_offset then p.before else p.last_offset end - p.first_offset + 1) as bigint)
        as again, cast(sum(p.records) as bigint) as records,
    max(m.asked) as not_stored, min(p.first_ts_ns) as first_ts_ns, max(p.first_ts_ns) as last_ts_ns,
    min_by(p.packet, p.first_ts_ns) as first_packet, max_by(p.packet, p.first_ts_ns) as last_packet,
    min_by(p.capture, p.first_ts_ns) as first_capture, max_by(p.capture, p.first_ts_ns) as last_capture
from placed p
left join missing m on p.server = m.server and p.vhost = m.vhost and p.stream = m.stream
where p.first_offset <= p.before and p.first_ts_ns >= p.until_ts_ns
group by p.client, p.client_ip, p.server, p.vhost, p.stream
