-- One row per client and exchange and routing key of its requests, or queue that nobody reads, for whose answers it waited
-- in vain. None of clients that do not read the queue for answers, or read more from it than the answers that were seen.
-- None without rows of calls.
with asked as (
    select n.client, n.server, n.vhost, c.exchange, c.routing_key, c.reply_to, c.request_connection_id, c.request_frame_no,
        c.request_ts_ns, c.request_packet, c.request_capture, c.answer_ts_ns, c.latency_ns, c.ended_by, c.end_ts_ns,
        lpad(cast(c.request_ts_ns as string), 20, '0') || lpad(cast(c.request_packet as string), 12, '0')
            || c.request_capture as place
    from calls c join endpoints n on c.request_connection_id = n.connection_id
),
alike as (
    select client, server, exchange, routing_key, count(answer_ts_ns) as answers, max(latency_ns) as longest_ns
    from asked group by client, server, exchange, routing_key
),
answered as (
    select client, server, reply_to, count(answer_ts_ns) as answers from asked group by client, server, reply_to
),
readers as (
    select client, server, queue, cast(sum(deliveries) as bigint) as deliveries
    from consumers where queue is not null group by client, server, queue
),
ways as (
    select server, vhost, exchange, routing_key, min(queue) as queue
    from routed where queues = 1 group by server, vhost, exchange, routing_key
),
unread as (
    select w.server, w.vhost, w.exchange, w.routing_key, u.queue, u.life_ms
    from ways w join undelivered u on w.server = u.server and w.vhost = u.vhost and w.queue = u.queue
    where u.consumers + u.polls + u.outs = 0
),
unroutable as (
    -- answers that came back
    select r.server, r.queue
    from (
        select server, case when routing_key like 'amq.rabbitmq.reply-to%' then 'amq.rabbitmq.reply-to' else routing_key end
            as queue
        from returns
    ) r group by r.server, r.queue
),
waits as (
    select k.client, k.server, k.vhost, k.exchange, k.routing_key, u.queue, u.life_ms,
        case when u.queue is null then k.exchange end as to_exchange,
        case when u.queue is null then k.routing_key end as with_key, a.answers, k.request_connection_id,
        k.request_frame_no, k.request_ts_ns, k.request_packet, k.request_capture, k.end_ts_ns, k.place
    from asked k
    join readers w on k.client = w.client and k.server = w.server and k.reply_to = w.queue
    left join alike a on k.client = a.client and k.server = a.server and k.exchange = a.exchange
        and k.routing_key = a.routing_key
    left join answered y on k.client = y.client and k.server = y.server and k.reply_to = y.reply_to
    left join unread u on k.server = u.server and coalesce(k.vhost, '') = u.vhost and k.exchange = u.exchange
        and k.routing_key = u.routing_key
    left join unroutable z on k.server = z.server and k.reply_to = z.queue
    where z.queue is null and k.answer_ts_ns is null
        and (k.ended_by = 'capture-end' or k.ended_by = 'connection-close' or k.ended_by = 'channel-close')
        and (k.end_ts_ns - k.request_ts_ns > 1000000000
            or (u.queue is not null and k.end_ts_ns - k.request_ts_ns > 300000000))
        and k.end_ts_ns - k.request_ts_ns > 3.0 * coalesce(a.longest_ns, 0) and w.deliveries <= coalesce(y.answers, 0)
),
takers as (
    -- who got them
    select w.request_connection_id, w.request_frame_no, min(n.client) as client, max(n.client) as other
    from waits w
    join transits t on w.request_connection_id = t.publish_connection_id and w.request_frame_no = t.publish_frame_no
    join endpoints n on t.deliver_connection_id = n.connection_id
    group by w.request_connection_id, w.request_frame_no
)
select w.client, w.server, w.vhost, min(w.request_connection_id) as connection_id, min(w.exchange) as exchange,
    case when min(w.routing_key) = max(w.routing_key) then min(w.routing_key) end as routing_key, w.queue, w.life_ms,
    count(*) as requests, coalesce(max(w.answers), 0) as answers, count(t.client) as taken,
    case when min(t.client) = max(t.other) then min(t.client) end as taker, min(w.end_ts_ns - w.request_ts_ns) as least_ns,
    min(w.request_ts_ns) as first_ts_ns, max(w.end_ts_ns) as last_ts_ns,
    min_by(w.request_packet, w.place) as first_packet, max_by(w.request_packet, w.place) as last_packet,
    min_by(w.request_capture, w.place) as first_capture, max_by(w.request_capture, w.place) as last_capture
from waits w
left join takers t on w.request_connection_id = t.request_connection_id and w.request_frame_no = t.request_frame_no
group by w.client, w.server, w.vhost, w.queue, w.life_ms, w.to_exchange, w.with_key
