-- What happened in each bucket of time, in all and by connection, client, exchange and queue.
with happened as (
    select p.connection_id, p.exchange, cast(null as string) as queue, p.first_ts_ns as ts_ns,
        p.count as publishes, 0 as confirms, 0 as nacks, 0 as deliveries, 0 as settlements, 0 as returns,
        0 as redeliveries, 0 as gets, p.bytes as bytes
    from published p
    union all
    select connection_id, exchange, cast(null as string), confirm_ts_ns, 0,
        case when outcome = 'ack' then 1 else 0 end, case when outcome = 'nack' then 1 else 0 end, 0, 0,
        case when returned then 1 else 0 end, 0, 0, 0
    from confirms where confirm_ts_ns is not null
    union all
    select connection_id, exchange, queue, deliver_ts_ns, 0, 0, 0, 1, 0, 0,
        case when redelivered then 1 else 0 end, case when kind = 'get' then 1 else 0 end, coalesce(body_size, 0)
    from settlements where deliver_ts_ns is not null and not coalesce(incomplete, false)
    union all
    select connection_id, cast(null as string), cast(null as string), ts_ns, 0, 0, 0, coalesce(records, 0), 0, 0, 0, 0,
        coalesce(size, 0)
    from stream_deliveries where chunk_type = 0
    union all
    select connection_id, exchange, queue, settle_ts_ns, 0, 0, 0, 0, 1, 0, 0, 0, 0
    from settlements where settle_ts_ns is not null and outcome <> 'auto'
),
placed as (
    select h.connection_id, n.client, h.exchange, h.queue, h.ts_ns - h.ts_ns % nullif(w.width_ns, 0) as ts_ns, w.width_ns,
        cast(sum(h.publishes) as bigint) as publishes, cast(sum(h.confirms) as bigint) as confirms,
        cast(sum(h.nacks) as bigint) as nacks, cast(sum(h.deliveries) as bigint) as deliveries,
        cast(sum(h.settlements) as bigint) as settlements, cast(sum(h.returns) as bigint) as returns,
        cast(sum(h.redeliveries) as bigint) as redeliveries, cast(sum(h.gets) as bigint) as gets,
        cast(sum(h.bytes) as bigint) as bytes
    from happened h
    join endpoints n on h.connection_id = n.connection_id
    join clock w on w.id = 1
    where h.ts_ns is not null
    group by h.connection_id, n.client, h.exchange, h.queue, h.ts_ns - h.ts_ns % nullif(w.width_ns, 0), w.width_ns
),
subjects as (
    select 'all' as grouping, cast(null as bigint) as connection_id, cast(null as string) as client,
        cast(null as string) as exchange, cast(null as string) as queue, ts_ns, width_ns, publishes, confirms, nacks,
        deliveries, settlements, returns, redeliveries, gets, bytes
    from placed
    union all
    select 'connection', connection_id, client, cast(null as string), cast(null as string), ts_ns, width_ns, publishes,
        confirms, nacks, deliveries, settlements, returns, redeliveries, gets, bytes
    from placed
    union all
    select 'client', cast(null as bigint), client, cast(null as string), cast(null as string), ts_ns, width_ns,
        publishes, confirms, nacks, deliveries, settlements, returns, redeliveries, gets, bytes
    from placed
    union all
    select 'exchange', cast(null as bigint), cast(null as string), exchange, cast(null as string), ts_ns, width_ns,
        publishes, confirms, nacks, deliveries, settlements, returns, redeliveries, gets, bytes
    from placed where exchange is not null
    union all
    select 'queue', cast(null as bigint), cast(null as string), cast(null as string), queue, ts_ns, width_ns, publishes,
        confirms, nacks, deliveries, settlements, returns, redeliveries, gets, bytes
    from placed where queue is not null
)
select ts_ns, width_ns, grouping, connection_id, client, exchange, queue,
    cast(sum(publishes) as bigint) as publishes, cast(sum(confirms) as bigint) as confirms,
    cast(sum(nacks) as bigint) as nacks, cast(sum(deliveries) as bigint) as deliveries,
    cast(sum(settlements) as bigint) as settlements, cast(sum(returns) as bigint) as returns,
    cast(sum(redeliveries) as bigint) as redeliveries, cast(sum(gets) as bigint) as gets,
    cast(sum(bytes) as bigint) as bytes
from subjects
group by ts_ns, width_ns, grouping, connection_id, client, exchange, queue
