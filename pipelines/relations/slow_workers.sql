-- One row per consumer whose deliveries wait long in it, though others of the same queue are quick.
-- None without rows of settlements.
with slow as (
    select server, coalesce(vhost, '') as vhost, queue, connection_id, channel, channel_epoch, consumer_tag, settle_p50_ns,
        prefetch, full_share,
        count(*) over (partition by connection_id) as consumers
    from consumers where deliveries > 0
),
quick as (
    select server, coalesce(vhost, '') as vhost, queue, connection_id, max(settle_p50_ns) as settle_p50_ns
    from consumers where settlements >= 20 group by server, coalesce(vhost, ''), queue, connection_id
),
got as (
    -- which queue it reads was seen before the capture: what it was given once, and by whom
    select s.server, s.connection_id, t.exchange, t.routing_key, t.publish_connection_id, t.publish_frame_no, t.deliver_ts_ns
    from slow s
    join transits t on s.connection_id = t.deliver_connection_id
    where s.queue is null and s.consumers = 1 and s.settle_p50_ns > 3000000000 and t.publish_frame_no is not null
),
keys as (
    select server, connection_id, exchange, routing_key, min(deliver_ts_ns) as first_ts_ns, max(deliver_ts_ns) as last_ts_ns
    from got group by server, connection_id, exchange, routing_key having count(*) >= 10
),
shared as (
    select g.connection_id, t.deliver_connection_id as other_id
    from got g
    join transits t on g.publish_connection_id = t.publish_connection_id and g.publish_frame_no = t.publish_frame_no
        and g.connection_id <> t.deliver_connection_id
    group by g.connection_id, t.deliver_connection_id
),
alike as (
    -- messages of the same keys, but never the same message: these are of one queue
    select k.server, k.connection_id, t.deliver_connection_id as other_id
    from keys k
    join transits t on k.exchange = t.exchange and k.routing_key = t.routing_key
        and t.deliver_ts_ns >= k.first_ts_ns and t.deliver_ts_ns <= k.last_ts_ns
    left join shared s on k.connection_id = s.connection_id and t.deliver_connection_id = s.other_id
    where t.deliver_connection_id <> k.connection_id and s.connection_id is null and t.publish_frame_no is not null
    group by k.server, k.connection_id, t.deliver_connection_id having count(*) >= 20
),
quicker as (
    select s.connection_id, s.channel, s.channel_epoch, s.consumer_tag, o.settle_p50_ns
    from slow s
    join quick o on s.server = o.server and s.vhost = o.vhost and s.queue = o.queue and s.connection_id <> o.connection_id
    left join queues q on s.server = q.server and s.vhost = q.vhost and s.queue = q.queue
    where s.prefetch > 1 and s.full_share > 0.5 and s.settle_p50_ns > 3000000000 and s.settle_p50_ns > 10.0 * o.settle_p50_ns
        and coalesce(q.queue_type, '') <> 'stream' and coalesce(q.left_over, 0) <= 10
    union all
    select s.connection_id, s.channel, s.channel_epoch, s.consumer_tag, o.settle_p50_ns
    from slow s
    join alike a on s.connection_id = a.connection_id
    join quick o on a.other_id = o.connection_id and o.queue is null and s.server = o.server and s.vhost = o.vhost
    where s.queue is null and s.settle_p50_ns > 10.0 * o.settle_p50_ns
)
select connection_id, channel, channel_epoch, consumer_tag, count(*) as others, max(settle_p50_ns) as others_p50_ns
from quicker group by connection_id, channel, channel_epoch, consumer_tag
