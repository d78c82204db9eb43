-- One row per queue to which consumers gave messages back: whether some come again and again, or stay away in the end.
-- None without rows of settlements.
with given_back as (
    select n.server, coalesce(n.vhost, '') as vhost,
        coalesce(s.queue, case when s.exchange = '' then s.routing_key end) as queue, n.client, s.connection_id,
        s.deliver_frame_no as frame_no, s.deliver_ts_ns, s.settle_ts_ns, s.deliver_packet as packet,
        s.deliver_capture as capture, s.redelivered
    from settlements s join endpoints n on s.connection_id = n.connection_id
    where s.requeue and (s.outcome = 'nack' or s.outcome = 'reject')
),
named as (
    -- a message is known by its publish, or else by its id
    select b.server, b.vhost, b.queue, b.settle_ts_ns, b.deliver_ts_ns, b.redelivered, t.publish_connection_id,
        t.publish_frame_no, case when t.publish_connection_id is null then t.message_id end as message_id
    from given_back b
    join transits t on b.connection_id = t.deliver_connection_id and b.frame_no = t.deliver_frame_no
    where b.queue is not null and (t.publish_connection_id is not null or t.message_id is not null)
),
messages as (
    select server, vhost, queue, publish_connection_id, publish_frame_no, message_id, count(*) as times,
        max(deliver_ts_ns) as deliver_ts_ns, max(settle_ts_ns) as settle_ts_ns,
        count(*) filter (where not redelivered) as firsts
    from named
    group by server, vhost, queue, publish_connection_id, publish_frame_no, message_id
),
deliveries as (
    select m.server, m.vhost, m.queue, m.publish_connection_id, m.publish_frame_no, m.message_id, t.deliver_ts_ns, t.attempt
    from messages m
    join transits t on m.publish_connection_id = t.publish_connection_id and m.publish_frame_no = t.publish_frame_no
    union all
    select m.server, m.vhost, m.queue, m.publish_connection_id, m.publish_frame_no, m.message_id, t.deliver_ts_ns, t.attempt
    from messages m
    join transits t on m.message_id = t.message_id
    where t.publish_connection_id is null
),
lasts as (
    select server, vhost, queue, coalesce(publish_connection_id, 0) as publish_connection_id,
        coalesce(publish_frame_no, 0) as publish_frame_no, coalesce(message_id, '') as message_id,
        max(deliver_ts_ns) as deliver_ts_ns, max(attempt) as attempt
    from deliveries
    group by server, vhost, queue, coalesce(publish_connection_id, 0), coalesce(publish_frame_no, 0),
        coalesce(message_id, '')
),
news as (
    select n.server, coalesce(n.vhost, '') as vhost,
        coalesce(s.queue, case when s.exchange = '' then s.routing_key end) as queue,
        max(case when not s.redelivered then s.deliver_ts_ns end) as ts_ns,
        count(*) filter (where s.outcome <> 'none' and s.outcome <> 'unknown'
            and not (coalesce(s.requeue, false) and (s.outcome = 'nack' or s.outcome = 'reject'))) as others
    from settlements s join endpoints n on s.connection_id = n.connection_id
    group by n.server, coalesce(n.vhost, ''), coalesce(s.queue, case when s.exchange = '' then s.routing_key end)
),
fates as (
    select m.server, m.vhost, m.queue, m.message_id, l.attempt,
        case when m.message_id is not null and m.firsts <= 1 then m.times end as times_unpublished,
        case when m.deliver_ts_ns = l.deliver_ts_ns then l.attempt end as put_back_at,
        -- what is put back comes before all that is newer
        case when m.deliver_ts_ns = l.deliver_ts_ns and w.ts_ns > m.settle_ts_ns + 5000000000 then l.attempt end as ended_at
    from messages m
    join lasts l on m.server = l.server and m.vhost = l.vhost and m.queue = l.queue
        and coalesce(m.publish_connection_id, 0) = l.publish_connection_id
        and coalesce(m.publish_frame_no, 0) = l.publish_frame_no and coalesce(m.message_id, '') = l.message_id
    join news w on m.server = w.server and m.vhost = w.vhost and m.queue = w.queue
),
sum_of_fates as (
    select server, vhost, queue, count(*) filter (where times_unpublished >= 5) as again,
        max(times_unpublished) as most,
        max_by(message_id, lpad(cast(times_unpublished as string), 20, '0') || message_id) as most_id,
        max(attempt) as attempts, count(ended_at) as ended, min(ended_at) as ended_at
    from fates group by server, vhost, queue
),
fate as (
    -- a broker that limits deliveries counts them, so all end at one number
    select s.server, s.vhost, s.queue, s.attempts, count(*) as ended
    from sum_of_fates s
    join fates f on s.server = f.server and s.vhost = f.vhost and s.queue = f.queue and s.attempts = f.put_back_at
    where s.ended >= 3 and s.ended_at >= 3 and s.ended_at = s.attempts
    group by s.server, s.vhost, s.queue, s.attempts
),
sums as (
    select server, vhost, queue, count(*) as times, count(distinct client) as clients, min(client) as client,
        min(connection_id) as connection_id, min(deliver_ts_ns) as first_ts_ns, max(deliver_ts_ns) as last_ts_ns,
        min_by(packet, lpad(cast(deliver_ts_ns as string), 20, '0') || lpad(cast(packet as string), 12, '0'))
            as first_packet,
        max_by(packet, lpad(cast(deliver_ts_ns as string), 20, '0') || lpad(cast(packet as string), 12, '0'))
            as last_packet,
        min_by(capture, lpad(cast(deliver_ts_ns as string), 20, '0') || lpad(cast(packet as string), 12, '0') || capture)
            as first_capture,
        max_by(capture, lpad(cast(deliver_ts_ns as string), 20, '0') || lpad(cast(packet as string), 12, '0') || capture)
            as last_capture
    from given_back where queue is not null group by server, vhost, queue
)
select s.server, s.vhost, s.queue, s.client, s.clients, s.connection_id, s.times, coalesce(w.others, 0) as others,
    coalesce(a.again, 0) as again, a.most, a.most_id, coalesce(f.ended, 0) as ended, f.attempts,
    s.first_ts_ns, s.last_ts_ns, s.first_packet, s.last_packet, s.first_capture, s.last_capture
from sums s
left join news w on s.server = w.server and s.vhost = w.vhost and s.queue = w.queue
left join sum_of_fates a on s.server = a.server and s.vhost = a.vhost and s.queue = a.queue
left join fate f on s.server = f.server and s.vhost = f.vhost and s.queue = f.queue
