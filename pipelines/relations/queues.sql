-- One row per queue of a broker and virtual host: what went in, as far as bindings were seen, what came out, who reads it.
with declared as (
    select c.server, c.vhost, c.queue, c.arguments, c.packet, c.capture, o.max_length, o.max_length_bytes, o.overflow,
        o.message_ttl_ms, o.delivery_limit, o.dead_letter_exchange, o.queue_type, o.auto_delete,
        row_number() over (partition by c.server, c.vhost, c.queue
            order by c.ts_ns nulls last, c.connection_id nulls last, c.frame_no nulls last) as earliest
    from changes c join operations o on c.connection_id = o.connection_id and c.frame_no = o.frame_no
    where c.method = 'queue.declare' and not c.passive and c.queue <> ''
),
ended as (
    select server, vhost, queue, count(*) filter (where method = 'queue.delete') as deletes,
        max(case when method = 'queue.purge' then ts_ns end) as purged_ts_ns
    from changes where method = 'queue.delete' or method = 'queue.purge' group by server, vhost, queue
),
vain as (
    -- what was published from a time on that may not have arrived: the path was dead, or the channel was in error
    select connection_id, channel, channel_epoch, min(ts_ns) as since_ts_ns
    from (
        select connection_id, cast(null as int) as channel, cast(null as int) as channel_epoch, since_ts_ns as ts_ns
        from dead_paths where from_client
        union all
        select connection_id, case when method = 'connection.close' then cast(null as int) else channel end,
            case when method = 'connection.close' then cast(null as int) else channel_epoch end,
            case when failed_method = 'basic.publish' then ts_ns - 1000000000 else ts_ns end
        from channel_errors where not from_client
    ) e group by connection_id, channel, channel_epoch
),
doubted as (
    select p.connection_id, p.first_frame_no, p.exchange, p.routing_key
    from published p
    join vain v on p.connection_id = v.connection_id and p.last_ts_ns >= v.since_ts_ns
        and (v.channel is null or (p.channel = v.channel and p.channel_epoch = v.channel_epoch))
    group by p.connection_id, p.first_frame_no, p.exchange, p.routing_key
),
parted as (
    -- a queue that is deleted with its last consumer takes nothing from there on
    select server, coalesce(vhost, '') as vhost, queue, max(ended_ts_ns) as ts_ns
    from consumers group by server, coalesce(vhost, ''), queue having count(*) = count(ended_ts_ns)
),
gone as (
    select p.server, p.vhost, p.queue, p.ts_ns
    from parted p join declared d on p.server = d.server and p.vhost = d.vhost and p.queue = d.queue
    where d.auto_delete
    group by p.server, p.vhost, p.queue, p.ts_ns
    union
    -- nor does one that went with its connection
    select d.server, d.vhost, d.queue, x.ended_ts_ns from declared d join exclusives x on d.queue = x.queue
),
behind as (
    -- exchanges that get what was not published to them: alternate ones, and those for dead letters
    select n.server, coalesce(n.vhost, '') as vhost, o.alternate_exchange as exchange
    from operations o join endpoints n on o.connection_id = n.connection_id
    where o.method = 'exchange.declare' and o.alternate_exchange is not null
    group by n.server, coalesce(n.vhost, ''), o.alternate_exchange
    union
    select server, vhost, dead_letter_exchange from declared where dead_letter_exchange is not null
),
fed as (
    select w.server, w.vhost, w.queue
    from (
        select n.server, coalesce(n.vhost, '') as vhost, o.queue
        from operations o
        join endpoints n on o.connection_id = n.connection_id
        join behind b on n.server = b.server and coalesce(n.vhost, '') = b.vhost and o.exchange = b.exchange
        where o.method = 'queue.bind' and o.exchange <> ''
        union all
        -- dead letters through the default exchange go to the queue that their key names
        select n.server, coalesce(n.vhost, '') as vhost, coalesce(o.dead_letter_routing_key, o.queue) as queue
        from operations o
        join endpoints n on o.connection_id = n.connection_id
        where o.method = 'queue.declare' and o.dead_letter_exchange = ''
    ) w
    group by w.server, w.vhost, w.queue
),
feeding as (
    select server, vhost, count(*) as ways from behind group by server, vhost
),
died as (
    select n.server, coalesce(n.vhost, '') as vhost, d.queue
    from deaths d join endpoints n on d.connection_id = n.connection_id
    group by n.server, coalesce(n.vhost, ''), d.queue
),
reached as (
    -- a publish of a second in which a binding began or ended is of an unknown time: the sum is unknown then
    select t.server, t.vhost, t.queue, min(p.first_ts_ns) as first_ts_ns,
        cast(sum(case when p.first_ts_ns >= t.from_ts_ns and p.last_ts_ns < t.to_ts_ns then p.count else 0 end) as bigint)
            as ins,
        cast(sum(case when p.last_ts_ns >= t.from_ts_ns and p.first_ts_ns < t.to_ts_ns
            and (u.connection_id is not null or g.ts_ns is not null
                or not (p.first_ts_ns >= t.from_ts_ns and p.last_ts_ns < t.to_ts_ns)) then p.count else 0 end) as bigint)
            as unsure,
        cast(sum(case when p.last_ts_ns >= t.from_ts_ns and p.first_ts_ns < t.to_ts_ns then p.expirations else 0 end)
            as bigint) as expirations,
        cast(sum(case when p.last_ts_ns >= t.from_ts_ns and p.first_ts_ns < t.to_ts_ns
            and cast(e.last_ts_ns - p.first_ts_ns as double) > 1000000.0 * p.min_expiration_ms then p.expirations else 0 end)
            as bigint) as expirable,
        max(case when p.last_ts_ns >= t.from_ts_ns and p.first_ts_ns < t.to_ts_ns then p.max_expiration_ms end)
            as max_expiration_ms,
        cast(sum(case when p.last_ts_ns >= t.from_ts_ns and p.first_ts_ns < t.to_ts_ns then p.requests else 0 end)
            as bigint) as requests
    from published p
    left join doubted u on p.connection_id = u.connection_id and p.first_frame_no = u.first_frame_no
        and p.exchange = u.exchange and p.routing_key = u.routing_key
    join endpoints n on p.connection_id = n.connection_id
    join servers e on n.server = e.server
    join routed t on n.server = t.server and coalesce(n.vhost, '') = t.vhost and p.exchange = t.exchange
        and p.routing_key = t.routing_key
    left join gone g on t.server = g.server and t.vhost = g.vhost and t.queue = g.queue and p.last_ts_ns >= g.ts_ns
    where t.queue is not null
    group by t.server, t.vhost, t.queue
),
returned as (
    -- what came back reached no queue, so this one was not there any more, or not bound
    select t.server, t.vhost, t.queue, count(*) as returns
    from operations o
    join endpoints n on o.connection_id = n.connection_id
    join routed t on n.server = t.server and coalesce(n.vhost, '') = t.vhost and o.exchange = t.exchange
        and o.routing_key = t.routing_key and o.ts_ns >= t.from_ts_ns and o.ts_ns < t.to_ts_ns
    where o.method = 'basic.return' and t.queue is not null
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
    select server, vhost, queue, cast(sum(outs) as bigint) as outs, cast(sum(redelivered) as bigint) as redelivered,
        cast(sum(gets) as bigint) as gets, cast(sum(rejected) as bigint) as rejected,
        cast(sum(requeued) as bigint) as requeued, cast(sum(unsettled) as bigint) as unsettled,
        -- put back, and nobody got them again, but for those that the broker does not deliver any more
        cast(sum(requeued + returned - redelivered - ended) as bigint) as given_back
    from (
        select n.server, coalesce(n.vhost, '') as vhost, s.queue,
            count(*) filter (where not coalesce(s.redelivered, false)) as outs,
            count(*) filter (where s.redelivered) as redelivered,
            count(*) filter (where s.kind = 'get') as gets,
            count(*) filter (where s.outcome = 'nack' or s.outcome = 'reject') as rejected,
            count(*) filter (where (s.outcome = 'nack' or s.outcome = 'reject') and s.requeue) as requeued,
            count(*) filter (where s.outcome = 'none') as unsettled,
            -- the broker takes back what a consumer that broke off has not settled
            count(*) filter (where s.outcome = 'none' and (s.ended_by = 'recover' or s.ended_by = 'channel-close'
                or (s.ended_by = 'connection-close' and n.ending <> 'closed'))) as returned, 0 as ended
        from settlements s join endpoints n on s.connection_id = n.connection_id
        where s.queue is not null
        group by n.server, coalesce(n.vhost, ''), s.queue
        union all
        select server, coalesce(vhost, ''), queue, deliveries - redeliveries, redeliveries, 0, rejected, requeued,
            unsettled, 0, 0
        from consumers where is_by_key
        union all
        select server, vhost, queue, 0, 0, 0, 0, 0, 0, 0, ended from requeued where ended > 0
    ) g group by server, vhost, queue
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
    select server, vhost, queue, latency_ns, deliver_connection_id, deliver_frame_no,
        row_number() over (partition by server, vhost, queue
            order by latency_ns nulls last, deliver_connection_id nulls last, deliver_frame_no nulls last) as place
    from (
        select n.server, coalesce(n.vhost, '') as vhost,
            coalesce(s.queue, case when s.exchange = '' then s.routing_key end) as queue, t.latency_ns,
            t.deliver_connection_id, t.deliver_frame_no
        from transits t
        join settlements s on t.deliver_connection_id = s.connection_id and t.deliver_frame_no = s.deliver_frame_no
        join endpoints n on t.deliver_connection_id = n.connection_id
        where t.latency_ns >= 0 and not coalesce(s.redelivered, false)
    ) d where queue is not null
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
        min(consumer_tag) as consumer_tag, min(called) as called, min(client) as client
    from consumers where queue is not null group by server, coalesce(vhost, ''), queue
),
polled as (
    select n.server, coalesce(n.vhost, '') as vhost, r.queue, count(*) as polls,
        count(*) filter (where r.response = 'basic.get-empty') as empty_gets
    from rpcs r join endpoints n on r.connection_id = n.connection_id
    where r.request = 'basic.get' and r.queue is not null
    group by n.server, coalesce(n.vhost, ''), r.queue
),
lost as (
    -- where some keys lead was too much to find out: to any queue
    select server, vhost from routed where queue is null and queues = 0 group by server, vhost
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
),
clusters as (
    select server, max(cluster_name) as cluster_name from endpoints group by server
),
scattered as (
    -- seen at several addresses, which are one broker's or one cluster's unless all of these have names of their own
    select q.vhost, q.queue
    from queues q join clusters c on q.server = c.server
    group by q.vhost, q.queue
    having count(*) > 1 and count(distinct c.cluster_name) < count(*)
),
elsewhere as (
    -- nobody knows the virtual host of connections that began before the capture
    select k.server, k.queue
    from (select server, queue from queues where vhost = '') k
    join (select server, queue from queues where vhost <> '') o on k.server = o.server and k.queue = o.queue
    group by k.server, k.queue
)
select q.queue, q.server, q.vhost, d.arguments, d.packet as declared_packet, d.capture as declared_capture,
    d.max_length, d.max_length_bytes, d.overflow, d.message_ttl_ms, d.dead_letter_exchange, d.queue_type,
    d.delivery_limit, coalesce(r.expirations, 0) as expirations,
    coalesce(r.expirable, 0) as expirable, r.max_expiration_ms, coalesce(r.requests, 0) as requests,
    -- more came out than went in: it had messages before, or others publish to it unseen
    case when z.queue is null and x.rows is null and b.queue is null and l.server is null and coalesce(r.unsure, 0) = 0
            and coalesce(g.outs, 0) <= coalesce(r.ins, 0)
            and (r.ins is not null or (d.packet is not null and coalesce(g.outs, 0) = 0 and w.ways is null))
            and coalesce(y.returns, 0) <= coalesce(r.ins, 0) - coalesce(g.outs, 0)
        then coalesce(r.ins, 0) - coalesce(f.nacked, 0) - coalesce(y.returns, 0) else cast(null as bigint) end as ins,
    coalesce(g.outs, 0) as outs,
    case when z.queue is null and x.rows is null and b.queue is null and l.server is null and i.queue is null and y.queue is null and t.queue is null
            and coalesce(r.unsure, 0) = 0 and r.ins is not null and coalesce(g.outs, 0) <= r.ins - coalesce(f.nacked, 0) and coalesce(e.deletes, 0) = 0
            and (e.purged_ts_ns is null or e.purged_ts_ns < r.first_ts_ns)
            -- nor did it drop messages unseen: by age, by bytes, at its head, or at a limit of deliveries
            and d.message_ttl_ms is null and coalesce(r.expirable, 0) = 0 and d.max_length_bytes is null
            and (d.max_length is null or r.ins - coalesce(f.nacked, 0) <= d.max_length
                or (d.overflow like 'reject-publish%' and r.ins - coalesce(f.nacked, 0) - coalesce(g.outs, 0) <= d.max_length))
            and (coalesce(g.given_back, 0) <= 0 or coalesce(d.queue_type, 'classic') = 'classic')
            -- what comes again without having come before was lost on its way to who had it, or is older than the capture
            and coalesce(g.redelivered, 0) <= coalesce(g.requeued, 0) + coalesce(g.unsettled, 0)
        then r.ins - coalesce(f.nacked, 0) - coalesce(g.outs, 0)
            + case when g.given_back > 0 then g.given_back else 0 end else cast(null as bigint) end as left_over,
    m.wait_p50_ns, s.wait_min_ns, s.wait_max_ns, coalesce(s.waits, 0) as waits,
    coalesce(c.consumers, 0) as consumers, c.consumer_tag, c.called, c.client, c.prefetch,
    coalesce(f.nacked, 0) as nacked, coalesce(g.rejected, 0) as rejected, coalesce(g.requeued, 0) as requeued,
    coalesce(g.redelivered, 0) as redeliveries, coalesce(g.gets, 0) as gets, coalesce(g.unsettled, 0) as unsettled,
    coalesce(p.polls, 0) as polls, coalesce(p.empty_gets, 0) as empty_gets, coalesce(e.deletes, 0) > 0 as deleted
from queues q
left join declared d on q.server = d.server and q.vhost = d.vhost and q.queue = d.queue and d.earliest = 1
left join ended e on q.server = e.server and q.vhost = e.vhost and q.queue = e.queue
left join reached r on q.server = r.server and q.vhost = r.vhost and q.queue = r.queue
left join refused f on q.server = f.server and q.vhost = f.vhost and q.queue = f.queue
left join returned y on q.server = y.server and q.vhost = y.vhost and q.queue = y.queue
left join given g on q.server = g.server and q.vhost = g.vhost and q.queue = g.queue
left join strange x on q.server = x.server and q.vhost = x.vhost and q.queue = x.queue
left join spans s on q.server = s.server and q.vhost = s.vhost and q.queue = s.queue
left join medians m on q.server = m.server and q.vhost = m.vhost and q.queue = m.queue
left join readers c on q.server = c.server and q.vhost = c.vhost and q.queue = c.queue
left join polled p on q.server = p.server and q.vhost = p.vhost and q.queue = p.queue
left join fed b on q.server = b.server and q.vhost = b.vhost and q.queue = b.queue
left join feeding w on q.server = w.server and q.vhost = w.vhost
left join lost l on q.server = l.server and q.vhost = l.vhost
left join died i on q.server = i.server and q.vhost = i.vhost and q.queue = i.queue
left join scattered z on q.vhost = z.vhost and q.queue = z.queue
left join elsewhere t on q.server = t.server and q.queue = t.queue
