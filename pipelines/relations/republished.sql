-- One row per client and queue of which it takes messages and publishes them again, under their id, to where they come back from.
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
keyed as (
    select t.server, t.vhost, t.exchange, t.routing_key, w.queue, w.into_queue
    from routed t join ways w on t.server = w.server and t.vhost = w.vhost and t.queue = w.into_queue
    group by t.server, t.vhost, t.exchange, t.routing_key, w.queue, w.into_queue
),
own as (
    select p.connection_id, p.exchange, p.routing_key, l.server, l.vhost, l.queue, l.into_queue, k.client
    from published p
    join endpoints n on p.connection_id = n.connection_id
    join keyed l on n.server = l.server and coalesce(n.vhost, '') = l.vhost and p.exchange = l.exchange
        and p.routing_key = l.routing_key
    join takers k on l.server = k.server and l.vhost = k.vhost and l.queue = k.queue and n.client = k.client
    group by p.connection_id, p.exchange, p.routing_key, l.server, l.vhost, l.queue, l.into_queue, k.client
),
sent as (
    -- some are in both
    select o.server, o.vhost, o.queue, o.into_queue, o.client, c.message_id, c.connection_id,
        c.publish_frame_no as frame_no, c.publish_ts_ns as ts_ns, c.publish_packet as packet,
        c.publish_capture as capture
    from confirms c
    join own o on c.connection_id = o.connection_id and c.exchange = o.exchange and c.routing_key = o.routing_key
    where c.message_id is not null and c.publish_frame_no is not null
    union
    select o.server, o.vhost, o.queue, o.into_queue, o.client, u.message_id, u.connection_id, u.frame_no, u.ts_ns,
        u.packet, u.capture
    from unconfirmed u
    join own o on u.connection_id = o.connection_id and u.exchange = o.exchange and u.routing_key = o.routing_key
    where u.message_id is not null
),
again as (
    select server, vhost, queue, into_queue, client, message_id, count(*) as times,
        min(connection_id) as connection_id, min(ts_ns) as first_ts_ns, max(ts_ns) as last_ts_ns,
        min_by(packet, frame_no) as first_packet, max_by(packet, frame_no) as last_packet,
        min_by(capture, frame_no) as first_capture, max_by(capture, frame_no) as last_capture
    from sent group by server, vhost, queue, into_queue, client, message_id having count(*) >= 4
),
taken as (
    select a.server, a.vhost, a.queue, a.client, a.message_id, min(t.deliver_ts_ns) as first_ts_ns,
        count(*) as deliveries
    from again a
    join transits t on a.queue = t.queue and a.message_id = t.message_id and not t.redelivered
    join endpoints m on t.deliver_connection_id = m.connection_id and a.server = m.server and a.client = m.client
    group by a.server, a.vhost, a.queue, a.client, a.message_id
)
-- what was its own from the beginning is no message that it took
select a.server, a.vhost, a.queue, a.into_queue, a.client, count(*) as messages, max(a.times) as most,
    min(a.connection_id) as connection_id, min(a.first_ts_ns) as first_ts_ns, max(a.last_ts_ns) as last_ts_ns,
    min_by(a.first_packet, a.first_ts_ns) as first_packet, max_by(a.last_packet, a.last_ts_ns) as last_packet,
    min_by(a.first_capture, a.first_ts_ns) as first_capture, max_by(a.last_capture, a.last_ts_ns) as last_capture
from again a
join taken t on a.server = t.server and a.vhost = t.vhost and a.queue = t.queue and a.client = t.client
    and a.message_id = t.message_id
where t.first_ts_ns < a.first_ts_ns and t.deliveries >= a.times
group by a.server, a.vhost, a.queue, a.into_queue, a.client
