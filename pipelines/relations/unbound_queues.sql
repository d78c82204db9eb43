-- One row per queue without a name of its own (exclusive) from which its client consumes, and which nobody bound nor names.
-- None without rows of operations.
with own as (
    select x.client, x.server, x.vhost, x.queue, x.connection_id, x.ts_ns, x.packet, x.capture
    from changes x join operations o on x.connection_id = o.connection_id and x.frame_no = o.frame_no
    where x.method = 'queue.declare' and not x.passive and o.exclusive and x.done_ts_ns is not null
),
bound as (
    select server, vhost, queue, max(exchange) as exchange from changes where method = 'queue.bind'
    group by server, vhost, queue
),
named as (
    -- who gets messages directly, or answers
    select routing_key as queue from published where exchange = '' group by routing_key
    union
    select reply_to from calls where reply_to is not null group by reply_to
),
taking as (
    select server, coalesce(vhost, '') as vhost, queue, connection_id, cast(sum(deliveries) as bigint) as deliveries,
        min(begun_ts_ns) as begun_ts_ns, max(ended_ts_ns) as ended_ts_ns
    from consumers where queue is not null group by server, coalesce(vhost, ''), queue, connection_id
),
siblings as (
    select o.server, o.vhost, b.exchange, count(*) as queues
    from own o
    join bound b on o.server = b.server and o.vhost = b.vhost and o.queue = b.queue
    join taking t on o.server = t.server and o.vhost = t.vhost and o.queue = t.queue and t.deliveries > 0
    group by o.server, o.vhost, b.exchange
),
usual as (
    select server, vhost, exchange, queues,
        row_number() over (partition by server, vhost order by queues desc nulls last, exchange nulls last) as place
    from siblings
)
select o.client, o.server, o.vhost, o.queue, u.exchange, coalesce(u.queues, 0) as siblings,
    coalesce(t.ended_ts_ns, n.last_ts_ns) - t.begun_ts_ns as waited_ns, o.connection_id, o.ts_ns, o.packet, o.capture
from own o
join endpoints n on o.connection_id = n.connection_id
join taking t on o.server = t.server and o.vhost = t.vhost and o.queue = t.queue and o.connection_id = t.connection_id
join covered k on o.server = k.server
left join bound b on o.server = b.server and o.vhost = b.vhost and o.queue = b.queue
left join named m on o.queue = m.queue
left join usual u on o.server = u.server and o.vhost = u.vhost and u.place = 1
where t.deliveries = 0 and t.begun_ts_ns is not null and b.queue is null and m.queue is null
