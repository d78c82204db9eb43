-- One row per client, exchange and routing key whose messages fit no binding, where the capture lacks no bytes. None with mandatory messages: those come back.
-- None without rows of operations.
with ways as (
    select server, vhost, exchange, routing_key, queue, packet, from_ts_ns, to_exchange,
        row_number() over (partition by server, vhost, exchange
            order by packet nulls last, routing_key nulls last, queue nulls last, from_ts_ns nulls last) as place
    from routes where (exchange_type = 'direct' or exchange_type = 'topic') and exchange not like 'amq.%'
        and to_ts_ns is null
),
bound as (
    select server, vhost, exchange, count(*) as bindings, max(from_ts_ns) as from_ts_ns,
        max(case when place = 1 then routing_key end) as bound_key, max(case when place = 1 then queue end) as bound_queue,
        max(case when place = 1 then packet end) as bound_packet
    from ways group by server, vhost, exchange
    -- where an exchange leads to others, it is not known of which binding a message got no further
    having count(to_exchange) = 0
),
aside as (
    -- an alternate exchange takes the rest; and what was bound at another node, or where the virtual host is not known, holds
    select exchange from operations
    where method = 'exchange.declare' and alternate_exchange is not null group by exchange
    union
    select exchange from (select server, vhost, exchange from routes group by server, vhost, exchange) r
    group by exchange having count(*) > 1
),
sent as (
    select n.client, n.server, coalesce(n.vhost, '') as vhost, p.exchange, p.routing_key, p.count, p.mandatories,
        p.connection_id, p.first_ts_ns, p.last_ts_ns, p.first_packet, p.last_packet, p.first_capture, p.last_capture,
        lpad(cast(p.first_ts_ns as string), 20, '0') || lpad(cast(p.first_packet as string), 12, '0') || p.first_capture
            as begin,
        lpad(cast(p.last_ts_ns as string), 20, '0') || lpad(cast(p.last_packet as string), 12, '0') || p.last_capture
            as until
    from published p join endpoints n on p.connection_id = n.connection_id
    where p.exchange <> ''
),
sums as (
    select client, server, vhost, exchange, routing_key, cast(sum(count) as bigint) as messages,
        cast(sum(mandatories) as bigint) as mandatories, min(connection_id) as connection_id,
        min(first_ts_ns) as first_ts_ns, max(last_ts_ns) as last_ts_ns,
        min_by(first_packet, begin) as first_packet, max_by(last_packet, until) as last_packet,
        min_by(first_capture, begin) as first_capture, max_by(last_capture, until) as last_capture
    from sent group by client, server, vhost, exchange, routing_key
),
reached as (
    select server, vhost, exchange, routing_key from routed group by server, vhost, exchange, routing_key
),
delivered as (
    -- by any node, to whomever
    select exchange, routing_key from settlements where exchange <> '' group by exchange, routing_key
),
found as (
    select s.client, s.server, s.vhost, s.exchange, s.routing_key, s.messages, b.bindings, b.bound_key, b.bound_queue,
        b.bound_packet, s.connection_id, s.first_ts_ns, s.last_ts_ns, s.first_packet, s.last_packet, s.first_capture,
        s.last_capture
    from sums s
    join covered k on s.server = k.server
    join bound b on s.server = b.server and s.vhost = b.vhost and s.exchange = b.exchange and s.first_ts_ns >= b.from_ts_ns
    left join aside a on s.exchange = a.exchange
    left join reached r on s.server = r.server and s.vhost = r.vhost and s.exchange = r.exchange
        and s.routing_key = r.routing_key
    left join delivered d on s.exchange = d.exchange and s.routing_key = d.routing_key
    where s.mandatories = 0 and a.exchange is null and r.exchange is null and d.exchange is null
),
former as (
    -- keys with bindings that were in use until these came
    select f.client, f.server, f.vhost, f.exchange, f.routing_key,
        max_by(u.routing_key, lpad(cast(u.last_ts_ns as string), 20, '0') || u.routing_key) as former_key
    from found f
    join sums u on f.server = u.server and f.vhost = u.vhost and f.exchange = u.exchange
        and u.last_ts_ns <= f.first_ts_ns and u.messages >= 10
    join reached r on u.server = r.server and u.vhost = r.vhost and u.exchange = r.exchange
        and u.routing_key = r.routing_key
    left join sums o on u.server = o.server and u.vhost = o.vhost and u.exchange = o.exchange
        and u.routing_key = o.routing_key and o.last_ts_ns > f.first_ts_ns
    where o.server is null
    group by f.client, f.server, f.vhost, f.exchange, f.routing_key
)
select f.client, f.server, f.vhost, f.exchange, f.routing_key, f.messages, f.bindings, f.bound_key, f.bound_queue,
    f.bound_packet, o.former_key, f.connection_id, f.first_ts_ns, f.last_ts_ns, f.first_packet, f.last_packet,
    f.first_capture, f.last_capture
from found f
left join former o on f.client = o.client and f.server = o.server and f.vhost = o.vhost and f.exchange = o.exchange
    and f.routing_key = o.routing_key
