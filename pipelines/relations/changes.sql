-- One row per declaration, deletion, binding, unbinding or purge of a queue or exchange that took effect, as far as the
-- capture tells: the broker agreed, or no answer was asked for, or its answer was not captured.
-- None without rows of operations.
select n.server, coalesce(n.vhost, '') as vhost, n.client, o.connection_id, o.frame_no, o.method,
    coalesce(o.passive, false) as passive, r.outcome,
    case when r.queue <> '' then r.queue else o.queue end as queue, o.exchange, o.exchange_type, o.to_exchange,
    o.source_exchange, o.routing_key, o.arguments, o.ts_ns, coalesce(r.response_ts_ns, o.ts_ns) as done_ts_ns, o.packet,
    o.capture
from operations o
join endpoints n on o.connection_id = n.connection_id
left join rpcs r on o.connection_id = r.connection_id and o.frame_no = r.request_frame_no and o.method = r.request
left join (
    select connection_id from channel_errors where method = 'connection.close' and not from_client group by connection_id
) e on o.connection_id = e.connection_id
where n.server is not null and o.channel > 0
    and (o.method like 'queue.%' or o.method like 'exchange.%') and o.method not like '%-ok'
    -- what the broker refused did not, nor what it never came to, as it closed the channel or connection before
    and coalesce(r.outcome, '') <> 'error' and coalesce(r.ended_by, '') <> 'channel-close'
    and coalesce(r.ended_by, '') <> 'discarded'
    and (coalesce(r.ended_by, '') <> 'connection-close' or e.connection_id is null)
    -- a passive declaration asks only: what it finds is there
    and (not coalesce(o.passive, false) or r.outcome = 'ok')
