-- One row per queue that has messages left and all of whose consumers are gone: which connection had the last one.
-- None without rows of operations.
with last as (
    select server, coalesce(vhost, '') as vhost, queue, connection_id, ended_ts_ns,
        row_number() over (partition by server, coalesce(vhost, ''), queue
            order by ended_ts_ns desc nulls first, connection_id nulls last, consumer_tag nulls last) as place
    from consumers where queue is not null
)
select l.server, l.vhost, l.queue, l.connection_id, l.ended_ts_ns as gone_ts_ns, q.left_over
from last l
join queues q on l.server = q.server and l.vhost = q.vhost and l.queue = q.queue
where l.place = 1 and l.ended_ts_ns is not null and q.polls = 0 and q.left_over > 10 and coalesce(q.queue_type, '') <> 'stream'
