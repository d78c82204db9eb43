-- One row per consumer that began before the capture and is given messages of one exchange and routing key: how many were
-- published with these meanwhile, at least. Its queue, and what else leads there, is not known.
-- None without rows of settlements.
with given as (
    select s.connection_id, s.channel, s.channel_epoch, s.consumer_tag, n.server, n.vhost, min(s.exchange) as exchange,
        min(s.routing_key) as routing_key, min(s.deliver_ts_ns) as first_ts_ns, max(s.deliver_ts_ns) as last_ts_ns
    from consumers c
    join settlements s on c.connection_id = s.connection_id and c.channel = s.channel
        and c.channel_epoch = s.channel_epoch and c.consumer_tag = s.consumer_tag
    join endpoints n on s.connection_id = n.connection_id
    where c.begun_ts_ns is null and c.deliveries >= 20
    group by s.connection_id, s.channel, s.channel_epoch, s.consumer_tag, n.server, n.vhost
    having min(s.exchange) = max(s.exchange) and min(s.routing_key) = max(s.routing_key)
),
sent as (
    -- a virtual host that was not seen may be any
    select n.server, case when n.vhost is null then 'unknown' else 'in ' || n.vhost end as place, p.exchange, p.routing_key,
        p.first_ts_ns, p.last_ts_ns, p.count
    from published p join endpoints n on p.connection_id = n.connection_id
    where p.first_ts_ns is not null and p.last_ts_ns is not null
    union all
    select n.server, 'any', p.exchange, p.routing_key, p.first_ts_ns, p.last_ts_ns, p.count
    from published p join endpoints n on p.connection_id = n.connection_id
    where p.first_ts_ns is not null and p.last_ts_ns is not null
),
wanted as (
    select connection_id, channel, channel_epoch, consumer_tag, server, exchange, routing_key, first_ts_ns, last_ts_ns,
        case when vhost is null then 'any' else 'in ' || vhost end as place
    from given
    union all
    select connection_id, channel, channel_epoch, consumer_tag, server, exchange, routing_key, first_ts_ns, last_ts_ns,
        'unknown'
    from given where vhost is not null
),
moments as (
    -- at one time: what ended, the consumers, and what begins
    select server, place, exchange, routing_key, last_ts_ns as ts_ns, 1 as turn, count as ended, cast(0 as bigint) as begun,
        cast(null as bigint) as connection_id, cast(null as int) as channel, cast(null as int) as channel_epoch,
        cast(null as string) as consumer_tag
    from sent
    union all
    select server, place, exchange, routing_key, first_ts_ns, 3, cast(0 as bigint), count, cast(null as bigint),
        cast(null as int), cast(null as int), cast(null as string)
    from sent
    union all
    select server, place, exchange, routing_key, first_ts_ns, 2, cast(0 as bigint), cast(0 as bigint), connection_id,
        channel, channel_epoch, consumer_tag
    from wanted
    union all
    select server, place, exchange, routing_key, last_ts_ns, 2, cast(0 as bigint), cast(0 as bigint), connection_id,
        channel, channel_epoch, consumer_tag
    from wanted
),
sums as (
    select connection_id, channel, channel_epoch, consumer_tag, place,
        cast(sum(ended) over (partition by server, place, exchange, routing_key
            order by ts_ns nulls last, turn nulls last, connection_id nulls last, channel nulls last,
                channel_epoch nulls last, consumer_tag nulls last
            rows between unbounded preceding and current row) as bigint) as ended,
        cast(sum(begun) over (partition by server, place, exchange, routing_key
            order by ts_ns nulls last, turn nulls last, connection_id nulls last, channel nulls last,
                channel_epoch nulls last, consumer_tag nulls last
            rows between unbounded preceding and current row) as bigint) as begun
    from moments
),
counts as (
    -- what ended until its last message, without what began before its first one
    select connection_id, channel, channel_epoch, consumer_tag, place, max(ended) - min(begun) as publishes
    from sums where connection_id is not null
    group by connection_id, channel, channel_epoch, consumer_tag, place
)
select connection_id, channel, channel_epoch, consumer_tag,
    cast(sum(case when publishes > 0 then publishes else 0 end) as bigint) as publishes
from counts group by connection_id, channel, channel_epoch, consumer_tag
