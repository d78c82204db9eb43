-- One row per queue whose client binds another key instead of one, after which messages with that key, which had been
-- delivered before, are delivered to nobody, and none has the new key.
-- None without rows of operations.
with swapped as (
    select u.client, u.server, u.vhost, u.queue, u.exchange, u.routing_key, u.connection_id, u.frame_no, u.ts_ns,
        u.done_ts_ns, u.packet, u.capture, max_by(b.routing_key, b.ts_ns) as bound_key
    from changes u
    join changes b on u.server = b.server and u.vhost = b.vhost and u.queue = b.queue and u.exchange = b.exchange
        and u.client = b.client and u.routing_key <> b.routing_key
    where u.method = 'queue.unbind' and b.method = 'queue.bind' and u.done_ts_ns is not null and u.exchange <> ''
        and b.ts_ns >= u.ts_ns - 10000000000 and b.ts_ns <= u.ts_ns + 10000000000
        and b.routing_key not like '%*%' and b.routing_key not like '%#%'
    group by u.client, u.server, u.vhost, u.queue, u.exchange, u.routing_key, u.connection_id, u.frame_no, u.ts_ns,
        u.done_ts_ns, u.packet, u.capture
),
taken as (
    -- whichever the virtual host: it is not known of connections that began before the capture
    select n.server, s.exchange, s.routing_key, s.deliver_ts_ns
    from settlements s join endpoints n on s.connection_id = n.connection_id
    where s.exchange <> '' and s.deliver_ts_ns is not null
),
before as (
    select w.connection_id, w.frame_no, count(*) as deliveries, max(t.deliver_ts_ns) as last_ts_ns
    from swapped w
    join taken t on w.server = t.server and w.exchange = t.exchange and w.routing_key = t.routing_key
    group by w.connection_id, w.frame_no
),
sent as (
    select n.server, p.exchange, p.routing_key, p.count, p.first_ts_ns, p.last_ts_ns
    from published p join endpoints n on p.connection_id = n.connection_id
    where p.exchange <> '' and p.mandatories = 0
),
used as (
    select server, exchange, routing_key from sent group by server, exchange, routing_key
)
select w.client, w.server, w.vhost, w.queue, w.exchange, w.routing_key, w.bound_key, b.deliveries,
    cast(sum(p.count) as bigint) as messages, max(p.last_ts_ns) as last_ts_ns, w.connection_id, w.frame_no, w.ts_ns,
    w.done_ts_ns, w.packet, w.capture
from swapped w
join before b on w.connection_id = b.connection_id and w.frame_no = b.frame_no
join sent p on w.server = p.server and w.exchange = p.exchange and w.routing_key = p.routing_key
    and p.first_ts_ns > w.done_ts_ns and p.first_ts_ns > b.last_ts_ns
left join used k on w.server = k.server and w.exchange = k.exchange and w.bound_key = k.routing_key
where k.server is null
group by w.client, w.server, w.vhost, w.queue, w.exchange, w.routing_key, w.bound_key, b.deliveries, w.connection_id,
    w.frame_no, w.ts_ns, w.done_ts_ns, w.packet, w.capture
