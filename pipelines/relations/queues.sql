-- One row per queue of a broker and virtual host: what went in, as far as bindings were seen, what came out, who reads it.
with declared as (
    select n.server, coalesce(n.vhost, '') as vhost, r.queue, o.arguments, o.packet, o.capture, o.max_length,
        o.max_length_bytes, o.overflow, o.message_ttl_ms, o.dead_letter_exchange, o.queue_type, o.exclusive,
        row_number() over (partition by n.server, coalesce(n.vhost, ''), r.queue
            order by o.ts_ns nulls last, o.connection_id nulls last, o.frame_no nulls last) as earliest
    from operations o
    join endpoints n on o.connection_id = n.connection_id
    join rpcs r on o.connection_id = r.connection_id and o.frame_no = r.request_frame_no
    where o.method = 'queue.declare' and r.outcome = 'ok' and not coalesce(o.passive, false) and r.queue is not null
),
ended as (
    select n.server, coalesce(n.vhost, '') as vhost, o.queue,
        count(*) filter (where o.method = 'queue.delete') as deletes,
        count(*) filter (where o.method = 'queue.purge') as purges
    from operations o join endpoints n on o.connection_id = n.connection_id
    where o.method = 'queue.delete' or o.method = 'queue.purge'
    group by n.server, coalesce(n.vhost, ''), o.queue
),
reached as (
    -- a publish of a second in which a binding began or ended is of an unknown time: the sum is unknown then
    select t.server, t.vhost, t.queue,
        cast(sum(case when p.first_ts_ns >= t.from_ts_ns and p.last_ts_ns < t.to_ts_ns then p.count else 0 end) as bigint)
            as ins,
        cast(sum(case when p.last_ts_ns >= t.from_ts_ns and p.first_ts_ns < t.to_ts_ns
            and not (p.first_ts_ns >= t.from_ts_ns and p.last_ts_ns < t.to_ts_ns) then p.count else 0 end) as bigint)
            as unsure
    from published p
    join endpoints n on p.connection_id = n.connection_id
    join routed t on n.server = t.server and coalesce(n.vhost, '') = t.vhost and p.exchange = t.exchange
        and p.routing_key = t.routing_key
    where t.queue is not null
    group by t.server, t.vhost, t.queue
),
limited as (
    select server, vhost, queue from declared where earliest = 1 and overflow like 'reject-publish%'
),
takers as (
    -- of several queues that a key leads to, a refusal is the one's that has a limit
    select t.server, t.vhost, t.exchange, t.routing_key, count(*) as limits
    from routed t join limited l on t.server = l.server and t.vhost = l.vhost and t.queue = l.queue
    group by t.server, t.vhost, t.exchange, t.routing_key
),
refused as (
    select t.server, t.vhost, t.queue, count(*) as nacked
    from confirms c
    join endpoints n on c.connection_id = n.connection_id
    join routed t on n.server = t.server and coalesce(n.vhost, '') = t.vhost and c.exchange = t.exchange
        and c.routing_key = t.routing_key
    left join takers k on t.server = k.server and t.vhost = k.vhost and t.exchange = k.exchange
        and t.routing_key = k.routing_key
    left join limited l on t.server = l.server and t.vhost = l.vhost and t.queue = l.queue
    where c.outcome = 'nack' and c.publish_ts_ns >= t.from_ts_ns and c.publish_ts_ns < t.to_ts_ns
        and (t.queues = 1 or (k.limits = 1 and l.queue is not null))
    group by t.server, t.vhost, t.queue
),
given as (
    select n.server, coalesce(n.vhost, '') as vhost, s.queue,
        count(*) filter (where not coalesce(s.redelivered, false)) as outs,
        count(*) filter (where s.redelivered) as redelivered,
        count(*) filter (where s.kind = 'get') as gets,
        count(*) filter (where s.outcome = 'nack' or s.outcome = 'reject') as rejected,
        count(*) filter (where (s.outcome = 'nack' or s.outcome = 'reject') and s.requeue) as requeued,
        count(*) filter (where s.outcome = 'none') as unsettled,
        -- put back, and nobody got them again
        count(*) filter (where (s.outcome = 'nack' or s.outcome = 'reject') and s.requeue)
            - count(*) filter (where s.redelivered) as given_back,
        cast(sum(s.body_size) as bigint) as bytes
    from settlements s join endpoints n on s.connection_id = n.connection_id
    where s.queue is not null
    group by n.server, coalesce(n.vhost, ''), s.queue
),
strange as (
    -- delivered though no binding that was seen leads there: the queue has bindings older than the capture
    select n.server, coalesce(n.vhost, '') as vhost, s.queue, count(*) as rows
    from settlements s
    join endpoints n on s.connection_id = n.connection_id
    left join routed t on n.server = t.server and coalesce(n.vhost, '') = t.vhost and s.exchange = t.exchange
        and s.routing_key = t.routing_key and s.queue = t.queue
    where s.queue is not null and t.queue is null
    group by n.server, coalesce(n.vhost, ''), s.queue
),
waits as (
    select n.server, coalesce(n.vhost, '') as vhost, s.queue, t.latency_ns, t.deliver_connection_id, t.deliver_frame_no,
        row_number() over (partition by n.server, coalesce(n.vhost, ''), s.queue
            order by t.latency_ns nulls last, t.deliver_connection_id nulls last, t.deliver_frame_no nulls last) as place
    from transits t
    join settlements s on t.deliver_connection_id = s.connection_id and t.deliver_frame_no = s.deliver_frame_no
    join endpoints n on t.deliver_connection_id = n.connection_id
    where t.latency_ns >= 0 and s.queue is not null and not coalesce(s.redelivered, false)
),
spans as (
    select server, vhost, queue, count(*) as waits, max(latency_ns) as wait_max_ns, min(latency_ns) as wait_min_ns
    from waits group by server, vhost, queue
),
medians as (
    select w.server, w.vhost, w.queue, w.latency_ns as wait_p50_ns
    from waits w
    join spans s on w.server = s.server and w.vhost = s.vhost and w.queue = s.queue
    where 2 * w.place = s.waits or 2 * w.place = s.waits + 1
),
readers as (
    select server, coalesce(vhost, '') as vhost, queue, count(*) as consumers, max(prefetch) as prefetch,
        min(consumer_tag) as consumer_tag, min(client) as client
    from consumers where queue is not null group by server, coalesce(vhost, ''), queue
),
polled as (
    select n.server, coalesce(n.vhost, '') as vhost, r.queue, count(*) as polls,
        count(*) filter (where r.response = 'basic.get-empty') as empty_gets
    from rpcs r join endpoints n on r.connection_id = n.connection_id
    where r.request = 'basic.get' and r.queue is not null
    group by n.server, coalesce(n.vhost, ''), r.queue
),
keys as (
    select server, vhost, queue from declared where earliest = 1
    union all
    select server, vhost, queue from given
    union all
    select server, vhost, queue from readers
    union all
    select server, vhost, queue from reached
    union all
    select server, vhost, queue from polled
),
queues as (
    select server, vhost, queue from keys group by server, vhost, queue
)
select q.queue, q.server, q.vhost, d.arguments, d.packet as declared_packet, d.capture as declared_capture,
    d.max_length, d.max_length_bytes, d.overflow, d.message_ttl_ms, d.dead_letter_exchange, d.queue_type,
    -- more came out than went in: it had messages before, or others publish to it unseen
    case when x.rows is null and coalesce(r.unsure, 0) = 0 and coalesce(g.outs, 0) <= coalesce(r.ins, 0)
            and (r.ins is not null or (d.packet is not null and coalesce(g.outs, 0) = 0))
        then coalesce(r.ins, 0) - coalesce(f.nacked, 0) else cast(null as bigint) end as ins,
    coalesce(g.outs, 0) as outs,
    case when x.rows is null and coalesce(r.unsure, 0) = 0 and r.ins is not null
            and coalesce(g.outs, 0) <= r.ins - coalesce(f.nacked, 0) and coalesce(e.deletes, 0) + coalesce(e.purges, 0) = 0
            -- nor did it drop messages unseen: by age, by bytes, at its head, or at a limit of deliveries
            and d.message_ttl_ms is null and d.max_length_bytes is null
            and (d.max_length is null or r.ins - coalesce(f.nacked, 0) <= d.max_length
                or (d.overflow like 'reject-publish%' and r.ins - coalesce(f.nacked, 0) - coalesce(g.outs, 0) <= d.max_length))
            and (coalesce(g.given_back, 0) <= 0 or coalesce(d.queue_type, 'classic') = 'classic')
        then r.ins - coalesce(f.nacked, 0) - coalesce(g.outs, 0)
            + case when g.given_back > 0 then g.given_back else 0 end else cast(null as bigint) end as left_over,
    m.wait_p50_ns, s.wait_min_ns, s.wait_max_ns, coalesce(s.waits, 0) as waits,
    coalesce(c.consumers, 0) as consumers, c.consumer_tag, c.client, c.prefetch,
    coalesce(f.nacked, 0) as nacked, coalesce(g.rejected, 0) as rejected, coalesce(g.requeued, 0) as requeued,
    coalesce(g.redelivered, 0) as redeliveries, coalesce(g.gets, 0) as gets, coalesce(g.unsettled, 0) as unsettled,
    coalesce(p.polls, 0) as polls, coalesce(p.empty_gets, 0) as empty_gets, coalesce(e.deletes, 0) > 0 as deleted
from queues q
left join declared d on q.server = d.server and q.vhost = d.vhost and q.queue = d.queue and d.earliest = 1
left join ended e on q.server = e.server and q.vhost = e.vhost and q.queue = e.queue
left join reached r on q.server = r.server and q.vhost = r.vhost and q.queue = r.queue
left join refused f on q.server = f.server and q.vhost = f.vhost and q.queue = f.queue
left join given g on q.server = g.server and q.vhost = g.vhost and q.queue = g.queue
left join strange x on q.server = x.server and q.vhost = x.vhost and q.queue = x.queue
left join spans s on q.server = s.server and q.vhost = s.vhost and q.queue = s.queue
left join medians m on q.server = m.server and q.vhost = m.vhost and q.queue = m.queue
left join readers c on q.server = c.server and q.vhost = c.vhost and q.queue = c.queue
left join polled p on q.server = p.server and q.vhost = p.vhost and q.queue = p.queue
