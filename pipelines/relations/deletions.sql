-- One row per deletion of a queue or exchange that took effect: who did it, and until when it was not declared again.
-- Of several without a declaration between them the first: brokers agree to delete what is not there.
-- None without rows of operations.
with ordered as (
    select server, vhost, client, connection_id, frame_no, method, packet, capture, ts_ns,
        case when method like 'queue.%' then queue end as queue,
        case when method like 'exchange.%' then exchange end as exchange
    from changes
    where method = 'queue.delete' or method = 'exchange.delete' or method = 'queue.declare' or method = 'exchange.declare'
),
preceded as (
    select server, vhost, client, connection_id, frame_no, method, packet, capture, ts_ns, queue, exchange,
        lag(method) over (partition by server, vhost, queue, exchange
            order by ts_ns nulls last, connection_id nulls first, frame_no nulls first) as former
    from ordered
),
followed as (
    select server, vhost, client, connection_id, frame_no, method, packet, capture, ts_ns, queue, exchange,
        lag(ts_ns) over (partition by server, vhost, queue, exchange
            order by ts_ns desc nulls first, connection_id desc nulls last, frame_no desc nulls last) as until_ts_ns
    from preceded where former is null or former <> method
)
select server, vhost, queue, exchange, client, connection_id, frame_no, ts_ns, until_ts_ns, packet, capture
from followed where method like '%.delete'
