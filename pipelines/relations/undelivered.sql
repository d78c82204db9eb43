-- One row per queue into which more messages came than were delivered, where the capture has all that may take them.
-- None without rows of operations.
with declared as (
    -- one that goes by itself takes its messages with it
    select c.server, c.vhost, c.queue
    from changes c join operations o on c.connection_id = o.connection_id and c.frame_no = o.frame_no
    where c.method = 'queue.declare' and not c.passive
    group by c.server, c.vhost, c.queue
    having max(case when coalesce(o.exclusive, false) or coalesce(o.auto_delete, false) or o.expires_ms is not null
        then 1 else 0 end) = 0
),
emptied as (
    -- by whomever: of connections that began before the capture the virtual host is not known
    select queue from changes where method = 'queue.purge' or method = 'queue.delete' group by queue
),
doubted as (
    -- what came to these brokers is not certain: it was rolled back, waited before a blocked broker, or was lost with it
    select n.server from rpcs r join endpoints n on r.connection_id = n.connection_id
    where r.request like 'tx.%' group by n.server
    union
    select n.server from flow_control f join endpoints n on f.connection_id = n.connection_id
    where f.cause = 'connection-blocked' group by n.server
    union
    select server from endpoints where reply_code = 320 group by server
),
taken as (
    -- at other nodes of a cluster as well
    select queue, min(server) as one, max(server) as other
    from queues where consumers + polls + outs > 0 group by queue
),
unnamed as (
    -- deliveries to consumers that began before the capture: of any queue that their key leads to
    select t.queue
    from (select exchange, routing_key from settlements where queue is null group by exchange, routing_key) s
    join routed t on s.exchange = t.exchange and s.routing_key = t.routing_key
    where t.queue is not null group by t.queue
),
died as (
    select n.server, coalesce(n.vhost, '') as vhost, d.queue
    from deaths d join endpoints n on d.connection_id = n.connection_id
    group by n.server, coalesce(n.vhost, ''), d.queue
),
ranked as (
    -- what came first does not go first
    select c.server, c.vhost, c.queue
    from changes c join operations o on c.connection_id = o.connection_id and c.frame_no = o.frame_no
    where o.arguments like '%"x-max-priority"%' group by c.server, c.vhost, c.queue
),
passed as (
    select n.server, coalesce(n.vhost, '') as vhost, t.queue, max(t.publish_ts_ns) as ts_ns
    from transits t join endpoints n on t.deliver_connection_id = n.connection_id
    where t.queue is not null group by n.server, coalesce(n.vhost, ''), t.queue
),
before as (
    -- what came before one that was delivered, and was not delivered itself, is not there any more
    select z.server, z.vhost, z.queue, cast(sum(p.count) as bigint) as ins
    from passed z
    join routed t on z.server = t.server and z.vhost = t.vhost and z.queue = t.queue
    join endpoints n on n.server = t.server and coalesce(n.vhost, '') = t.vhost
    join published p on p.connection_id = n.connection_id and p.exchange = t.exchange and p.routing_key = t.routing_key
    where p.first_ts_ns >= t.from_ts_ns and p.last_ts_ns < t.to_ts_ns and p.last_ts_ns <= z.ts_ns
    group by z.server, z.vhost, z.queue
),
fed as (
    select server, coalesce(vhost, '') as vhost, queue, min(first_ts_ns) as first_ts_ns, max(last_ts_ns) as last_ts_ns
    from topology where edge = 'route' group by server, coalesce(vhost, ''), queue
)
select q.server, q.vhost, q.queue, q.ins, q.outs, q.ins - q.outs as messages,
    case when q.max_length >= 0 then q.max_length end as max_length, q.max_length_bytes, q.overflow,
    case when q.message_ttl_ms > 0 then q.message_ttl_ms end as message_ttl_ms, q.expirable,
    -- how long any of them lives at most: of its own time to live and the queue's, the shorter one counts
    case when q.expirations >= q.ins + q.nacked and (q.message_ttl_ms is null or q.message_ttl_ms <= 0
            or q.max_expiration_ms < q.message_ttl_ms) then q.max_expiration_ms
        when q.message_ttl_ms > 0 then q.message_ttl_ms end as life_ms, q.requests, q.dead_letter_exchange,
    d.queue is not null as died, q.consumers, q.polls, q.client, q.declared_packet, q.declared_capture,
    f.first_ts_ns, f.last_ts_ns, case when r.queue is null then z.ts_ns end as passed_ts_ns,
    case when r.queue is null and b.ins > q.outs then b.ins - q.outs else 0 end as passed, k.last_ts_ns as until_ts_ns
from queues q
join covered k on q.server = k.server
join declared e on q.server = e.server and q.vhost = e.vhost and q.queue = e.queue
join fed f on q.server = f.server and q.vhost = f.vhost and q.queue = f.queue
left join emptied p on q.queue = p.queue
left join doubted x on q.server = x.server
left join unnamed u on q.queue = u.queue
left join taken t on q.queue = t.queue
left join ranked r on q.server = r.server and q.vhost = r.vhost and q.queue = r.queue
left join passed z on q.server = z.server and q.vhost = z.vhost and q.queue = z.queue
left join before b on q.server = b.server and q.vhost = b.vhost and q.queue = b.queue
left join died d on q.server = d.server and q.vhost = d.vhost and q.queue = d.queue
where q.ins > q.outs and u.queue is null and coalesce(q.queue_type, '') <> 'stream'
    and p.queue is null and x.server is null and (t.queue is null or (t.one = q.server and t.other = q.server))
