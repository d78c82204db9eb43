-- One row per queue whose consumers publish messages of it again, under their ids, to where they come back from.
-- None without rows of published.
with takers as (
    select server, coalesce(vhost, '') as vhost, queue, client from consumers where queue is not null
    group by server, coalesce(vhost, ''), queue, client
),
ways as (
    -- into the queue, or into one whose messages come to it as dead letters
    select server, vhost, queue, queue as into_queue from takers group by server, vhost, queue
    union
    select n.server, coalesce(n.vhost, ''), s.queue, d.queue
    from deaths d
    join settlements s on d.connection_id = s.connection_id and d.frame_no = s.deliver_frame_no
    join endpoints n on d.connection_id = n.connection_id
    where s.queue is not null and d.queue is not null
    group by n.server, coalesce(n.vhost, ''), s.queue, d.queue
),
own as (
    -- some libraries publish on a connection of its own, whose name goes on behind a dot
    select p.connection_id, n.client, t.server, t.vhost, p.exchange, p.routing_key, w.queue, w.into_queue
    from published p
    join endpoints n on p.connection_id = n.connection_id
    join routed t on n.server = t.server and coalesce(n.vhost, '') = t.vhost and p.exchange = t.exchange
        and p.routing_key = t.routing_key
    join ways w on t.server = w.server and t.vhost = w.vhost and t.queue = w.into_queue
    join takers k on w.server = k.server and w.vhost = k.vhost and w.queue = k.queue
        and (n.client = k.client or (n.client >= k.client || '.' and n.client < k.client || '/'))
    group by p.connection_id, n.client, t.server, t.vhost, p.exchange, p.routing_key, w.queue, w.into_queue
),
senders as (
    -- they, and who else publishes there
    select p.connection_id, p.exchange, p.routing_key, n.server, coalesce(n.vhost, '') as vhost, n.client,
        max(case when p.connection_id = o.connection_id then 1 else 0 end) as is_own
    from published p
    join endpoints n on p.connection_id = n.connection_id
    join own o on n.server = o.server and coalesce(n.vhost, '') = o.vhost and p.exchange = o.exchange
        and p.routing_key = o.routing_key
    group by p.connection_id, p.exchange, p.routing_key, n.server, coalesce(n.vhost, ''), n.client
),
sent as (
    -- some are in both
    select connection_id, publish_frame_no as frame_no, exchange, routing_key, message_id, publish_ts_ns as ts_ns,
        publish_packet as packet, publish_capture as capture
    from confirms where message_id is not null and publish_frame_no is not null and stream is null
    union all
    select connection_id, frame_no, exchange, routing_key, message_id, ts_ns, packet, capture
    from unconfirmed where message_id is not null
),
placed as (
    select k.server, k.vhost, k.client, k.is_own, s.connection_id, s.frame_no, s.exchange, s.routing_key, s.message_id,
        s.ts_ns, s.packet, s.capture,
        lpad(cast(s.ts_ns as string), 20, '0') || lpad(cast(s.packet as string), 12, '0') || s.capture as place
    from sent s
    join senders k on s.connection_id = k.connection_id and s.exchange = k.exchange and s.routing_key = k.routing_key
    group by k.server, k.vhost, k.client, k.is_own, s.connection_id, s.frame_no, s.exchange, s.routing_key,
        s.message_id, s.ts_ns, s.packet, s.capture
),
again as (
    select p.server, p.vhost, p.exchange, p.routing_key, p.message_id, count(*) as times, max(o.count) as of_others,
        count(distinct p.client) as clients, min(p.client) as client, min(p.connection_id) as connection_id,
        min(p.ts_ns) as first_ts_ns, max(p.ts_ns) as last_ts_ns,
        min(p.place) as begin, min_by(p.packet, p.place) as first_packet, min_by(p.capture, p.place) as first_capture,
        max(p.place) as until, max_by(p.packet, p.place) as last_packet, max_by(p.capture, p.place) as last_capture
    from placed p
    left join (
        select server, vhost, exchange, routing_key, message_id, count(*) as count from placed where is_own = 0
        group by server, vhost, exchange, routing_key, message_id
    ) o on p.server = o.server and p.vhost = o.vhost and p.exchange = o.exchange and p.routing_key = o.routing_key
        and p.message_id = o.message_id
    where p.is_own = 1
    group by p.server, p.vhost, p.exchange, p.routing_key, p.message_id
    having count(*) >= 5
),
looped as (
    select a.server, a.vhost, w.queue, w.into_queue, a.message_id, a.times, a.of_others, a.clients, a.client,
        a.connection_id, a.first_ts_ns, a.last_ts_ns, a.begin, a.first_packet, a.first_capture, a.until,
        a.last_packet, a.last_capture
    from again a
    join (
        select server, vhost, exchange, routing_key, queue, into_queue from own
        group by server, vhost, exchange, routing_key, queue, into_queue
    ) w on a.server = w.server and a.vhost = w.vhost and a.exchange = w.exchange and a.routing_key = w.routing_key
),
taken as (
    select l.server, l.vhost, l.queue, l.message_id, min(t.deliver_ts_ns) as first_ts_ns, count(*) as deliveries
    from (select server, vhost, queue, message_id from looped group by server, vhost, queue, message_id) l
    join transits t on l.message_id = t.message_id and not t.redelivered
        and l.queue = coalesce(t.queue, case when t.exchange = '' then t.routing_key end)
    join endpoints m on t.deliver_connection_id = m.connection_id and l.server = m.server
    group by l.server, l.vhost, l.queue, l.message_id
)
-- what was its own from the beginning is no message that it took; and one that is not published again has come to its end
select l.server, l.vhost, l.queue, l.into_queue, min(l.client) as client, max(l.clients) as clients, count(*) as messages,
    max(l.times) as most, count(*) filter (where l.of_others > 0) as of_others, min(l.connection_id) as connection_id,
    min(l.first_ts_ns) as first_ts_ns, max(l.last_ts_ns) as last_ts_ns,
    min_by(l.first_packet, l.begin) as first_packet, max_by(l.last_packet, l.until) as last_packet,
    min_by(l.first_capture, l.begin) as first_capture, max_by(l.last_capture, l.until) as last_capture
from looped l
join taken t on l.server = t.server and l.vhost = t.vhost and l.queue = t.queue and l.message_id = t.message_id
where t.first_ts_ns < l.first_ts_ns and t.deliveries >= l.times and (l.times >= 10 or t.deliveries <= l.times)
group by l.server, l.vhost, l.queue, l.into_queue
