-- One row per queue to which consumers gave messages back: whether some come again and again, or stay away in the end.
-- None without rows of settlements.
with repeating as (
    select n.server, coalesce(n.vhost, '') as vhost,
        coalesce(s.queue, case when s.exchange = '' then s.routing_key end) as queue
    from settlements s join endpoints n on s.connection_id = n.connection_id
    where s.requeue and (s.outcome = 'nack' or s.outcome = 'reject')
    group by n.server, coalesce(n.vhost, ''), coalesce(s.queue, case when s.exchange = '' then s.routing_key end)
),
deliveries as (
    select q.server, q.vhost, q.queue, n.client, s.connection_id, s.deliver_frame_no as frame_no, s.deliver_ts_ns,
        s.settle_ts_ns, s.deliver_packet as packet, s.deliver_capture as capture,
        lpad(cast(s.deliver_ts_ns as string), 20, '0') || lpad(cast(s.deliver_packet as string), 12, '0')
            || s.deliver_capture as place,
        coalesce(s.redelivered, false) as redelivered, s.outcome,
        coalesce(s.requeue, false) and (s.outcome = 'nack' or s.outcome = 'reject') as is_back
    from settlements s
    join endpoints n on s.connection_id = n.connection_id
    join repeating q on n.server = q.server and coalesce(n.vhost, '') = q.vhost
        and coalesce(s.queue, case when s.exchange = '' then s.routing_key end) = q.queue
),
known as (
    -- a message is known by its id, where its publish was not seen; how often it was delivered by what the broker counts
    select b.server, b.vhost, b.queue, b.settle_ts_ns, b.redelivered, b.is_back, t.attempt,
        case when t.publish_connection_id is null then t.message_id end as message_id
    from deliveries b
    join transits t on b.connection_id = t.deliver_connection_id and b.frame_no = t.deliver_frame_no
    where b.is_back or b.redelivered
),
messages as (
    select server, vhost, queue, message_id, count(*) as times from known where is_back and message_id is not null
    group by server, vhost, queue, message_id having count(*) filter (where not redelivered) <= 1
),
repeated as (
    select server, vhost, queue, count(*) filter (where times >= 5) as again, max(times) as most,
        max_by(message_id, lpad(cast(times as string), 20, '0') || message_id) as most_id
    from messages group by server, vhost, queue
),
sums as (
    select server, vhost, queue, max(case when not redelivered then deliver_ts_ns end) as new_ts_ns,
        count(*) filter (where is_back) as times,
        count(*) filter (where not is_back and outcome <> 'none' and outcome <> 'unknown') as others
    from deliveries group by server, vhost, queue
),
most as (
    select server, vhost, queue, max(attempt) as attempts from known group by server, vhost, queue
),
ended as (
    -- what is put back comes before all that is newer; a broker that limits deliveries ends all at one number of them
    select k.server, k.vhost, k.queue, m.attempts, count(*) as ended
    from known k
    join most m on k.server = m.server and k.vhost = m.vhost and k.queue = m.queue and k.attempt = m.attempts
    join sums w on k.server = w.server and k.vhost = w.vhost and k.queue = w.queue
    where k.is_back and m.attempts >= 3
    group by k.server, k.vhost, k.queue, m.attempts
    having count(*) filter (where w.new_ts_ns > k.settle_ts_ns + 5000000000) >= 3
),
clients as (
    select server, vhost, queue, count(distinct client) as clients, min(client) as client,
        min(connection_id) as connection_id, min(deliver_ts_ns) as first_ts_ns, max(deliver_ts_ns) as last_ts_ns,
        min_by(packet, place) as first_packet, max_by(packet, place) as last_packet,
        min_by(capture, place) as first_capture, max_by(capture, place) as last_capture
    from deliveries where is_back group by server, vhost, queue
)
select s.server, s.vhost, s.queue, c.client, c.clients, c.connection_id, s.times, s.others,
    coalesce(a.again, 0) as again, a.most, a.most_id, coalesce(f.ended, 0) as ended, f.attempts,
    c.first_ts_ns, c.last_ts_ns, c.first_packet, c.last_packet, c.first_capture, c.last_capture
from clients c
join sums s on c.server = s.server and c.vhost = s.vhost and c.queue = s.queue
left join repeated a on c.server = a.server and c.vhost = a.vhost and c.queue = a.queue
left join ended f on c.server = f.server and c.vhost = f.vhost and c.queue = f.queue
