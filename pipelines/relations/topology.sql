-- One row per edge of the way of messages: client to exchange and key (or to stream), exchange and key to queue, queue to
-- consumer.
with sent as (
    select n.server, n.vhost, n.client, p.exchange, p.routing_key, cast(sum(p.count) as bigint) as messages,
        cast(sum(p.bytes) as bigint) as bytes, min(p.first_ts_ns) as first_ts_ns, max(p.last_ts_ns) as last_ts_ns
    from (
        -- answers by direct reply-to have a key for each channel that asks
        select connection_id, exchange, count, bytes, first_ts_ns, last_ts_ns,
            case when routing_key like 'amq.rabbitmq.reply-to.%' then 'amq.rabbitmq.reply-to' else routing_key end
                as routing_key
        from published where exchange is not null
    ) p join endpoints n on p.connection_id = n.connection_id
    group by n.server, n.vhost, n.client, p.exchange, p.routing_key
),
answered as (
    select n.server, n.vhost, n.client, c.exchange, c.routing_key, count(*) filter (where c.outcome = 'nack') as refused,
        count(*) filter (where c.returned) as returned
    from (
        select connection_id, exchange, outcome, returned,
            case when routing_key like 'amq.rabbitmq.reply-to.%' then 'amq.rabbitmq.reply-to' else routing_key end
                as routing_key
        from confirms
    ) c join endpoints n on c.connection_id = n.connection_id
    group by n.server, n.vhost, n.client, c.exchange, c.routing_key
),
stored as (
    select n.server, n.vhost, n.client, p.stream, cast(sum(p.count) as bigint) as messages,
        cast(sum(p.bytes) as bigint) as bytes, min(p.first_ts_ns) as first_ts_ns, max(p.last_ts_ns) as last_ts_ns
    from published p join endpoints n on p.connection_id = n.connection_id
    where p.stream is not null
    group by n.server, n.vhost, n.client, p.stream
),
rejected as (
    select n.server, n.vhost, n.client, c.stream, count(*) as refused
    from confirms c join endpoints n on c.connection_id = n.connection_id
    where c.stream is not null and c.outcome = 'nack'
    group by n.server, n.vhost, n.client, c.stream
),
led as (
    select t.server, t.vhost, t.exchange, t.routing_key, t.queue, cast(sum(p.count) as bigint) as messages,
        cast(sum(p.bytes) as bigint) as bytes, min(p.first_ts_ns) as first_ts_ns, max(p.last_ts_ns) as last_ts_ns
    from published p
    join endpoints n on p.connection_id = n.connection_id
    join routed t on n.server = t.server and coalesce(n.vhost, '') = t.vhost and p.exchange = t.exchange
        and p.routing_key = t.routing_key
    where t.queue is not null and p.first_ts_ns >= t.from_ts_ns and p.last_ts_ns < t.to_ts_ns
    group by t.server, t.vhost, t.exchange, t.routing_key, t.queue
)
select 'publish' as edge, s.server, s.vhost, s.client, s.exchange, s.routing_key, cast(null as string) as queue,
    cast(null as string) as consumer_tag, s.messages, s.bytes, coalesce(a.refused, 0) as refused,
    coalesce(a.returned, 0) as returns, s.first_ts_ns, s.last_ts_ns
from sent s
left join answered a on s.server = a.server and coalesce(s.vhost, '') = coalesce(a.vhost, '') and s.client = a.client
    and s.exchange = a.exchange and s.routing_key = a.routing_key
union all
select 'publish', s.server, s.vhost, s.client, cast(null as string), cast(null as string), s.stream, cast(null as string),
    s.messages, s.bytes, coalesce(r.refused, 0), 0, s.first_ts_ns, s.last_ts_ns
from stored s
left join rejected r on s.server = r.server and coalesce(s.vhost, '') = coalesce(r.vhost, '') and s.client = r.client
    and s.stream = r.stream
union all
select 'route', server, vhost, cast(null as string), exchange, routing_key, queue, cast(null as string), messages, bytes,
    0, 0, first_ts_ns, last_ts_ns
from led
union all
select 'consume', server, vhost, client, cast(null as string), cast(null as string), queue, consumer_tag, deliveries,
    bytes, rejected, 0, first_ts_ns, last_ts_ns
from consumers
