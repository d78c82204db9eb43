-- One row per queue that was exclusive to a connection and went with it, and that no other has made anew, at any node.
-- None without rows of operations.
select w.queue, w.owner, w.ended_ts_ns
from (
    select c.queue, max_by(c.client, c.place) as owner, max(c.ended_ts_ns) as ended_ts_ns
    from (
        select c.queue, c.client, coalesce(n.closed_ts_ns, n.last_ts_ns) as ended_ts_ns,
            lpad(cast(coalesce(n.closed_ts_ns, n.last_ts_ns) as string), 20, '0') || c.client as place,
            case when coalesce(o.exclusive, false) and coalesce(n.ending, 'open') <> 'open' then 1 else 0 end as is_gone
        from changes c
        join operations o on c.connection_id = o.connection_id and c.frame_no = o.frame_no
        join endpoints n on c.connection_id = n.connection_id
        where c.method = 'queue.declare' and not c.passive
    ) c
    group by c.queue having min(c.is_gone) = 1
) w
left join (select queue from deletions where queue is not null group by queue) d on w.queue = d.queue
where d.queue is null
