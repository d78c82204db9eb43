-- One row per exchange of a broker and virtual host: what was published to it, and what became of it.
with sent as (
    select n.server, coalesce(n.vhost, '') as vhost, p.exchange, p.routing_key, cast(sum(p.count) as bigint) as publishes,
        cast(sum(p.bytes) as bigint) as bytes
    from published p join endpoints n on p.connection_id = n.connection_id
    where p.exchange is not null group by n.server, coalesce(n.vhost, ''), p.exchange, p.routing_key
),
sums as (
    select server, vhost, exchange, cast(sum(publishes) as bigint) as publishes, cast(sum(bytes) as bigint) as bytes,
        count(*) as keys
    from sent group by server, vhost, exchange
),
answered as (
    select n.server, coalesce(n.vhost, '') as vhost, c.exchange, count(*) filter (where c.outcome = 'ack') as confirms,
        count(*) filter (where c.outcome = 'nack') as nacks, count(*) filter (where c.returned) as returns
    from confirms c join endpoints n on c.connection_id = n.connection_id
    where c.exchange is not null group by n.server, coalesce(n.vhost, ''), c.exchange
),
declared as (
    select c.server, c.vhost, c.exchange, c.exchange_type, c.packet, c.capture, o.alternate_exchange,
        row_number() over (partition by c.server, c.vhost, c.exchange
            order by c.ts_ns nulls last, c.connection_id nulls last, c.frame_no nulls last) as earliest
    from changes c join operations o on c.connection_id = o.connection_id and c.frame_no = o.frame_no
    where c.method = 'exchange.declare' and not c.passive
),
keys as (
    select server, vhost, exchange from sums
    union all
    select server, vhost, exchange from declared where earliest = 1
),
exchanges as (
    select server, vhost, exchange from keys group by server, vhost, exchange
)
select x.exchange, x.server, x.vhost,
    case when x.exchange = '' then 'direct' else d.exchange_type end as type,
    d.packet as declared_packet, d.capture as declared_capture, d.alternate_exchange,
    coalesce(s.publishes, 0) as publishes, coalesce(s.bytes, 0) as bytes,
    coalesce(a.confirms, 0) as confirms, coalesce(a.nacks, 0) as nacks, coalesce(a.returns, 0) as returns,
    coalesce(s.keys, 0) as keys
from exchanges x
left join sums s on x.server = s.server and x.vhost = s.vhost and x.exchange = s.exchange
left join answered a on x.server = a.server and x.vhost = a.vhost and x.exchange = a.exchange
left join declared d on x.server = d.server and x.vhost = d.vhost and x.exchange = d.exchange and d.earliest = 1
