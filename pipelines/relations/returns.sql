-- One row per client, exchange and routing key with publishes that came back as unroutable.
-- None without rows of operations.
with sent as (
    select n.client, n.server, p.exchange, p.routing_key, cast(sum(p.count) as bigint) as publishes
    from published p join endpoints n on p.connection_id = n.connection_id
    where p.exchange is not null group by n.client, n.server, p.exchange, p.routing_key
),
back as (
    select n.client, n.server, coalesce(n.vhost, '') as vhost, o.exchange, o.routing_key, count(*) as count,
        min(o.reply_text) as reason, min(o.connection_id) as connection_id,
        min(o.ts_ns) as first_ts_ns, max(o.ts_ns) as last_ts_ns, min_by(o.packet, o.place) as first_packet,
        max_by(o.packet, o.place) as last_packet, min_by(o.capture, o.place) as first_capture,
        max_by(o.capture, o.place) as last_capture
    from (
        select connection_id, exchange, routing_key, reply_text, ts_ns, packet, capture,
            lpad(cast(ts_ns as string), 20, '0') || lpad(cast(packet as string), 12, '0') || capture as place
        from operations where method = 'basic.return'
    ) o join endpoints n on o.connection_id = n.connection_id
    group by n.client, n.server, coalesce(n.vhost, ''), o.exchange, o.routing_key
),
later as (
    -- of the second of the last return at least the last publish; at the end of the capture one may still come back
    select b.client, b.server, b.vhost, b.exchange, b.routing_key,
        cast(sum(case when p.first_ts_ns > b.last_ts_ns then p.mandatories else 1 end
            - case when p.last_ts_ns > e.last_ts_ns - 100000000 then 1 else 0 end) as bigint) as arrived
    from back b
    join endpoints n on b.client = n.client and b.server = n.server and b.vhost = coalesce(n.vhost, '')
    join servers e on n.server = e.server
    join published p on p.connection_id = n.connection_id and b.exchange = p.exchange and b.routing_key = p.routing_key
    where p.last_ts_ns > b.last_ts_ns and p.mandatories > 0
    group by b.client, b.server, b.vhost, b.exchange, b.routing_key
)
select b.client, b.server, b.vhost, b.exchange, b.routing_key, b.count, coalesce(s.publishes, 0) as publishes,
    coalesce(l.arrived, 0) as arrived, b.reason, x.owner, x.ended_ts_ns as owner_ended_ts_ns, b.connection_id, b.first_ts_ns, b.last_ts_ns, b.first_packet,
    b.last_packet, b.first_capture, b.last_capture
from back b
left join sent s on b.client = s.client and b.server = s.server and b.exchange = s.exchange
    and b.routing_key = s.routing_key
left join later l on b.client = l.client and b.server = l.server and b.vhost = l.vhost and b.exchange = l.exchange
    and b.routing_key = l.routing_key
left join exclusives x on b.exchange = '' and b.routing_key = x.queue and x.ended_ts_ns < b.first_ts_ns
