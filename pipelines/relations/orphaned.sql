-- One row per queue that has messages left and all of whose consumers are gone: which connection had the last one.
-- None without rows of operations.
with ends as (
    select c.server, coalesce(c.vhost, '') as vhost, c.queue, c.connection_id, c.consumer_tag,
        coalesce(c.cancelled_ts_ns, h.closed_ts_ns, n.closed_ts_ns) as ts_ns
    from consumers c
    join endpoints n on c.connection_id = n.connection_id
    left join channels h on c.connection_id = h.connection_id and c.channel = h.channel
        and c.channel_epoch = h.channel_epoch
    where c.queue is not null
),
last as (
    select server, vhost, queue, connection_id, ts_ns,
        row_number() over (partition by server, vhost, queue
            order by ts_ns desc nulls first, connection_id nulls last, consumer_tag nulls last) as place
    from ends
)
select l.server, l.vhost, l.queue, l.connection_id, l.ts_ns as gone_ts_ns, q.left_over
from last l
join queues q on l.server = q.server and l.vhost = q.vhost and l.queue = q.queue
where l.place = 1 and l.ts_ns is not null and q.polls = 0 and q.left_over > 10 and coalesce(q.queue_type, '') <> 'stream'
