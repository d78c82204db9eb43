-- One row per queue or exchange that a client deleted, and the broker agreed: who did it last.
-- None without rows of operations.
select n.server, coalesce(n.vhost, '') as vhost,
    case when o.method = 'queue.delete' then o.queue end as queue,
    case when o.method = 'exchange.delete' then o.exchange end as exchange,
    count(*) as deletions,
    max_by(n.client, lpad(cast(o.ts_ns as string), 20, '0') || lpad(cast(o.packet as string), 12, '0') || o.capture) as client,
    max(o.ts_ns) as ts_ns,
    max_by(o.packet, lpad(cast(o.ts_ns as string), 20, '0') || lpad(cast(o.packet as string), 12, '0') || o.capture) as packet,
    max_by(o.capture, lpad(cast(o.ts_ns as string), 20, '0') || lpad(cast(o.packet as string), 12, '0') || o.capture) as capture
from operations o
join endpoints n on o.connection_id = n.connection_id
join rpcs r on r.connection_id = o.connection_id and r.request_frame_no = o.frame_no
where r.outcome = 'ok' and (o.method = 'queue.delete' or o.method = 'exchange.delete')
group by n.server, coalesce(n.vhost, ''), case when o.method = 'queue.delete' then o.queue end,
    case when o.method = 'exchange.delete' then o.exchange end
