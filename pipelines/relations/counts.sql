-- One row per answer of a broker that says how many messages and consumers a queue has.
-- None without rows of operations.
select n.server, coalesce(n.vhost, '') as vhost, n.client, o.queue, o.ts_ns, o.connection_id, o.frame_no, o.message_count,
    o.consumer_count, o.packet, o.capture
from operations o join endpoints n on o.connection_id = n.connection_id
where o.method = 'queue.declare-ok' and o.message_count is not null
