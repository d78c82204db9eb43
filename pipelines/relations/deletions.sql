-- One row per deletion of a queue or exchange that took effect: who did it, and until when it was seen to be there again.
-- Of several between which it was not seen, the first: brokers agree to delete what is not there.
-- None without rows of operations.
with ordered as (
    select server, vhost, client, connection_id, frame_no, method, packet, capture, ts_ns,
        case when method like 'queue.%' then queue end as queue,
        case when method like 'exchange.%' then exchange end as exchange,
        case when method like '%.delete' then 1 else 0 end as is_deletion
    from changes
    where method = 'queue.delete' or method = 'exchange.delete' or method = 'queue.declare' or method = 'exchange.declare'
        or (method = 'queue.bind' and outcome = 'ok')
    union all
    -- it was there where a request that needs it had its answer
    select n.server, coalesce(n.vhost, ''), n.client, r.connection_id, r.request_frame_no, r.request, r.request_packet,
        r.request_capture, r.response_ts_ns, r.queue, cast(null as string), 0
    from rpcs r join endpoints n on r.connection_id = n.connection_id
    where r.outcome = 'ok' and r.queue <> '' and n.server is not null
        and (r.request = 'basic.consume' or r.request = 'basic.get')
),
preceded as (
    select server, vhost, client, connection_id, frame_no, packet, capture, ts_ns, queue, exchange, is_deletion,
        lag(is_deletion) over (partition by server, vhost, queue, exchange
            order by ts_ns nulls last, connection_id nulls first, frame_no nulls first) as former
    from ordered
),
followed as (
    select server, vhost, client, connection_id, frame_no, packet, capture, ts_ns, queue, exchange, is_deletion,
        lag(ts_ns) over (partition by server, vhost, queue, exchange
            order by ts_ns desc nulls first, connection_id desc nulls last, frame_no desc nulls last) as until_ts_ns
    from preceded where former is null or former <> is_deletion
)
select server, vhost, queue, exchange, client, connection_id, frame_no, ts_ns, until_ts_ns, packet, capture
from followed where is_deletion = 1
