-- One row per unbinding of a queue from an exchange after which messages with keys that had led from there to the queue
-- do not reach it, though others consume from it. None by who consumes from it too, and none of deleted queues.
-- None without rows of operations.
with ways as (
    -- until when a key led to a queue, over all of its bindings
    select server, vhost, exchange, routing_key, queue, max(to_ts_ns) as to_ts_ns
    from routed where queue is not null group by server, vhost, exchange, routing_key, queue
),
sent as (
    select n.server, coalesce(n.vhost, '') as vhost, p.exchange, p.routing_key, p.count, p.first_ts_ns, p.last_ts_ns
    from published p join endpoints n on p.connection_id = n.connection_id
),
readers as (
    select server, coalesce(vhost, '') as vhost, queue, min(client) as client, cast(sum(deliveries) as bigint) as deliveries,
        case when count(*) = count(ended_ts_ns) then max(ended_ts_ns) end as ended_ts_ns
    from consumers group by server, coalesce(vhost, ''), queue
),
own as (
    select server, coalesce(vhost, '') as vhost, queue, client
    from consumers group by server, coalesce(vhost, ''), queue, client
),
bound as (
    select server, vhost, queue, exchange, client, max(routing_key) as routing_key, max(ts_ns) as ts_ns
    from changes where method = 'queue.bind' group by server, vhost, queue, exchange, client
)
select x.client, x.server, x.vhost, x.queue, x.exchange, x.routing_key, b.routing_key as bound_key, k.client as consumer,
    k.deliveries, k.ended_ts_ns, cast(sum(p.count) as bigint) as messages, max(p.last_ts_ns) as last_ts_ns,
    x.connection_id, x.frame_no, x.ts_ns, x.done_ts_ns, x.packet, x.capture
from changes x
join ways w on x.server = w.server and x.vhost = w.vhost and x.queue = w.queue and x.exchange = w.exchange
    and x.done_ts_ns = w.to_ts_ns
join sent p on w.server = p.server and w.vhost = p.vhost and w.exchange = p.exchange and w.routing_key = p.routing_key
    and p.first_ts_ns >= w.to_ts_ns
join readers k on x.server = k.server and x.vhost = k.vhost and x.queue = k.queue
left join own o on x.server = o.server and x.vhost = o.vhost and x.queue = o.queue and x.client = o.client
left join bound b on x.server = b.server and x.vhost = b.vhost and x.queue = b.queue and x.exchange = b.exchange
    and x.client = b.client and b.ts_ns > x.ts_ns
left join queues d on x.server = d.server and x.vhost = d.vhost and x.queue = d.queue and d.deleted
where x.method = 'queue.unbind' and o.client is null and d.queue is null
group by x.client, x.server, x.vhost, x.queue, x.exchange, x.routing_key, b.routing_key, k.client, k.deliveries,
    k.ended_ts_ns, x.connection_id, x.frame_no, x.ts_ns, x.done_ts_ns, x.packet, x.capture
