-- One row per client, exchange and routing key with publishes that came back as unroutable.
with sent as (
    select n.client, n.server, p.exchange, p.routing_key, cast(sum(p.count) as bigint) as publishes
    from published p join endpoints n on p.connection_id = n.connection_id
    where p.exchange is not null group by n.client, n.server, p.exchange, p.routing_key
)
select n.client, n.server, coalesce(n.vhost, '') as vhost, o.exchange, o.routing_key, count(*) as count,
    coalesce(max(s.publishes), 0) as publishes, min(o.reply_text) as reason, min(o.connection_id) as connection_id,
    min(o.ts_ns) as first_ts_ns, max(o.ts_ns) as last_ts_ns, min(o.packet) as first_packet,
    max(o.packet) as last_packet, min(o.capture) as first_capture, max(o.capture) as last_capture
from operations o
join endpoints n on o.connection_id = n.connection_id
left join sent s on n.client = s.client and n.server = s.server and o.exchange = s.exchange
    and o.routing_key = s.routing_key
where o.method = 'basic.return'
group by n.client, n.server, coalesce(n.vhost, ''), o.exchange, o.routing_key
