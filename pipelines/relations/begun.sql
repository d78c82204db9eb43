-- One row per consumer that began before the capture, whose queue and prefetch are not known: how many deliveries it held,
-- how long its messages had waited, and how many were published meanwhile that may be for it, at least.
-- None without rows of settlements.
with old as (
    select connection_id, channel, channel_epoch, consumer_tag, first_ts_ns, last_ts_ns
    from consumers where begun_ts_ns is null and deliveries >= 20
),
taken as (
    select s.connection_id, s.channel, s.channel_epoch, s.consumer_tag, n.server, n.vhost, s.exchange, s.routing_key,
        s.deliver_ts_ns, s.settle_frame_no, t.latency_ns
    from old c
    join settlements s on c.connection_id = s.connection_id and c.channel = s.channel
        and c.channel_epoch = s.channel_epoch and c.consumer_tag = s.consumer_tag
    join endpoints n on s.connection_id = n.connection_id
    left join transits t on s.connection_id = t.deliver_connection_id and s.deliver_frame_no = t.deliver_frame_no
        and t.latency_ns >= 0
),
had as (
    select connection_id, channel, channel_epoch, consumer_tag, server, vhost, count(latency_ns) as waits,
        count(settle_frame_no) as settled, count(distinct settle_frame_no) as settling,
        min(latency_ns) as wait_min_ns, max(latency_ns) as wait_max_ns, min(exchange) as exchange,
        min(routing_key) as routing_key, min(exchange) = max(exchange) and min(routing_key) = max(routing_key) as is_alike,
        min(deliver_ts_ns) as first_ts_ns, max(deliver_ts_ns) as last_ts_ns
    from taken group by connection_id, channel, channel_epoch, consumer_tag, server, vhost
),
held as (
    select o.connection_id, o.channel, o.channel_epoch, o.consumer_tag, o.ts_ns, o.ts_ns + o.width_ns as to_ts_ns,
        o.last, o.high, c.first_ts_ns, c.last_ts_ns,
        max(o.high) over (partition by o.connection_id, o.channel, o.channel_epoch, o.consumer_tag) as most
    from old c
    join occupancy o on c.connection_id = o.connection_id and c.channel = o.channel
        and c.channel_epoch = o.channel_epoch and c.consumer_tag = o.consumer_tag
    where o.level = 'unacked'
),
fullest as (
    select connection_id, channel, channel_epoch, consumer_tag, min(ts_ns) as ts_ns
    from held where high = most group by connection_id, channel, channel_epoch, consumer_tag
),
levels as (
    -- between its first delivery and its last one, once it had held the most
    select h.connection_id, h.channel, h.channel_epoch, h.consumer_tag, count(*) as buckets, min(h.last) as held_min,
        max(h.high) as held_max, min(h.ts_ns) as held_from_ts_ns, max(h.to_ts_ns) as held_to_ts_ns
    from held h
    join fullest f on h.connection_id = f.connection_id and h.channel = f.channel and h.channel_epoch = f.channel_epoch
        and h.consumer_tag = f.consumer_tag and h.ts_ns > f.ts_ns
    where h.ts_ns > h.first_ts_ns and h.to_ts_ns < h.last_ts_ns
    group by h.connection_id, h.channel, h.channel_epoch, h.consumer_tag
),
given as (
    select connection_id, channel, channel_epoch, consumer_tag, server, vhost, exchange, routing_key, first_ts_ns, last_ts_ns
    from had where is_alike
),
asked as (
    select server, exchange, routing_key from given group by server, exchange, routing_key
),
sent as (
    -- a virtual host that was not seen may be any
    select n.server, case when n.vhost is null then 'unknown' else 'in ' || n.vhost end as place, p.exchange, p.routing_key,
        p.first_ts_ns, p.last_ts_ns, p.count
    from published p
    join endpoints n on p.connection_id = n.connection_id
    join asked a on n.server = a.server and p.exchange = a.exchange and p.routing_key = a.routing_key
    where p.first_ts_ns is not null and p.last_ts_ns is not null
    union all
    select n.server, 'any', p.exchange, p.routing_key, p.first_ts_ns, p.last_ts_ns, p.count
    from published p
    join endpoints n on p.connection_id = n.connection_id
    join asked a on n.server = a.server and p.exchange = a.exchange and p.routing_key = a.routing_key
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
),
counted as (
    select connection_id, channel, channel_epoch, consumer_tag,
        cast(sum(case when publishes > 0 then publishes else 0 end) as bigint) as publishes
    from counts group by connection_id, channel, channel_epoch, consumer_tag
)
select d.connection_id, d.channel, d.channel_epoch, d.consumer_tag, d.routing_key, p.publishes, d.waits, d.wait_min_ns,
    d.wait_max_ns, d.settled, d.settling, coalesce(l.buckets, 0) as buckets,
    l.held_min, l.held_max, l.held_from_ts_ns, l.held_to_ts_ns
from had d
left join levels l on d.connection_id = l.connection_id and d.channel = l.channel and d.channel_epoch = l.channel_epoch
    and d.consumer_tag = l.consumer_tag
left join counted p on d.connection_id = p.connection_id and d.channel = p.channel
    and d.channel_epoch = p.channel_epoch and d.consumer_tag = p.consumer_tag
