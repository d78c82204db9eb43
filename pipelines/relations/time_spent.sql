-- One row per connection: where its time went. Each moment has one owner, the first of those that had a reason to wait.
with spans as (
    -- nobody can tell: bytes are missing, a direction is, or all is encrypted
    select connection_id, 1 as owner, since_ts_ns as begin_ts_ns, ts_ns as end_ts_ns from gaps
    union all
    select connection_id, 1, first_ts_ns, last_ts_ns from endpoints
    where unreadable is not null or protocol = 'unknown' or protocol is null
    union all
    select connection_id, 1, publish_ts_ns, end_ts_ns from confirms where ended_by = 'gap' or ended_by = 'evicted'
    union all
    select connection_id, 1, request_ts_ns, end_ts_ns from rpcs where ended_by = 'gap' or ended_by = 'evicted'
    union all
    select connection_id, 1, deliver_ts_ns, end_ts_ns from settlements where ended_by = 'gap' or ended_by = 'evicted'
    union all
    -- the way: what is asked is not there, or its answer not here, before a round trip is over
    select a.connection_id, 2, a.begin_ts_ns,
        case when a.end_ts_ns < a.begin_ts_ns + a.way_ns then a.end_ts_ns else a.begin_ts_ns + a.way_ns end
    from (
        select c.connection_id, c.publish_ts_ns as begin_ts_ns, c.confirm_ts_ns as end_ts_ns,
            n.rtt_ns - n.client_rtt_ns as way_ns
        from confirms c join endpoints n on c.connection_id = n.connection_id where c.confirm_ts_ns is not null
        union all
        select r.connection_id, r.request_ts_ns, r.response_ts_ns,
            case when r.from_client then n.rtt_ns - n.client_rtt_ns else n.client_rtt_ns end
        from rpcs r join endpoints n on r.connection_id = n.connection_id where r.response_ts_ns is not null
        union all
        select s.connection_id, s.deliver_ts_ns, s.settle_ts_ns, n.client_rtt_ns
        from settlements s join endpoints n on s.connection_id = n.connection_id
        where s.settle_ts_ns is not null and s.outcome <> 'auto'
    ) a where a.way_ns > 0
    union all
    -- an acknowledgement opened the window of a prefetch, and messages waited for it: it was on its way to the broker
    select f.connection_id, 2, f.end_ts_ns, f.end_ts_ns + n.rtt_ns - n.client_rtt_ns
    from flow_control f join endpoints n on f.connection_id = n.connection_id
    where f.cause = 'prefetch' and f.evidence = 'proven' and n.rtt_ns > n.client_rtt_ns
    union all
    -- bytes were not acknowledged: they were lost and sent again, or held until an acknowledgement came
    select connection_id, 2, start_ts_ns, end_ts_ns from tcp_delays where kind = 'retransmission' or kind = 'held-write'
    union all
    -- the broker: it stops the client, or owes an answer
    select connection_id, case when side = 'server' then 3 else 4 end, start_ts_ns,
        coalesce(end_ts_ns, start_ts_ns + duration_ns)
    from flow_control
    union all
    select connection_id, 3, publish_ts_ns, coalesce(confirm_ts_ns, end_ts_ns) from confirms
    where confirm_ts_ns is not null or (ended_by <> 'gap' and ended_by <> 'evicted')
    union all
    select connection_id, case when from_client then 3 else 4 end, request_ts_ns, coalesce(response_ts_ns, end_ts_ns)
    from rpcs where response_ts_ns is not null or (ended_by <> 'gap' and ended_by <> 'evicted')
    union all
    -- the client: deliveries are not settled
    select connection_id, 4, deliver_ts_ns, coalesce(settle_ts_ns, end_ts_ns) from settlements
    where outcome <> 'auto' and outcome <> 'unknown'
        and (settle_ts_ns is not null or (ended_by <> 'gap' and ended_by <> 'evicted'))
),
inside as (
    select s.connection_id, s.owner,
        case when s.begin_ts_ns > n.first_ts_ns then s.begin_ts_ns else n.first_ts_ns end as begin_ts_ns,
        case when s.end_ts_ns < n.last_ts_ns then s.end_ts_ns else n.last_ts_ns end as end_ts_ns
    from spans s join endpoints n on s.connection_id = n.connection_id
    where s.begin_ts_ns < s.end_ts_ns and s.begin_ts_ns < n.last_ts_ns and s.end_ts_ns > n.first_ts_ns
),
steps as (
    select connection_id, owner, begin_ts_ns as ts_ns, 1 as step from inside
    union all
    select connection_id, owner, end_ts_ns, -1 from inside
    union all
    select connection_id, 5, first_ts_ns, 0 from endpoints where first_ts_ns < last_ts_ns
    union all
    select connection_id, 5, last_ts_ns, 0 from endpoints where first_ts_ns < last_ts_ns
),
moments as (
    select connection_id, ts_ns,
        cast(sum(case when owner = 1 then step else 0 end) as bigint) as unknown,
        cast(sum(case when owner = 2 then step else 0 end) as bigint) as network,
        cast(sum(case when owner = 3 then step else 0 end) as bigint) as broker,
        cast(sum(case when owner = 4 then step else 0 end) as bigint) as client
    from steps group by connection_id, ts_ns
),
slices as (
    -- from one moment to the next: what was open before this moment
    select connection_id,
        ts_ns - lag(ts_ns) over (partition by connection_id order by ts_ns nulls last) as took_ns,
        cast(sum(unknown) over (partition by connection_id order by ts_ns nulls last
            rows between unbounded preceding and current row) as bigint) - unknown as unknown,
        cast(sum(network) over (partition by connection_id order by ts_ns nulls last
            rows between unbounded preceding and current row) as bigint) - network as network,
        cast(sum(broker) over (partition by connection_id order by ts_ns nulls last
            rows between unbounded preceding and current row) as bigint) - broker as broker,
        cast(sum(client) over (partition by connection_id order by ts_ns nulls last
            rows between unbounded preceding and current row) as bigint) - client as client
    from moments
),
owned as (
    select connection_id, took_ns,
        case when unknown > 0 then 1 when network > 0 then 2 when broker > 0 then 3 when client > 0 then 4 else 5 end
            as owner
    from slices where took_ns is not null
),
sums as (
    select connection_id,
        cast(sum(case when owner = 1 then took_ns else 0 end) as bigint) as unknown_ns,
        cast(sum(case when owner = 2 then took_ns else 0 end) as bigint) as network_ns,
        cast(sum(case when owner = 3 then took_ns else 0 end) as bigint) as broker_ns,
        cast(sum(case when owner = 4 then took_ns else 0 end) as bigint) as client_ns,
        cast(sum(case when owner = 5 then took_ns else 0 end) as bigint) as idle_ns
    from owned group by connection_id
),
stops as (
    select connection_id, cast(sum(duration_ns) as bigint) as blocked_ns
    from flow_control where cause = 'connection-blocked' group by connection_id
)
select n.connection_id, n.client, n.server, n.client_ip, n.client_port, n.server_ip, n.server_port,
    n.first_ts_ns, n.last_ts_ns,
    case when n.last_ts_ns > n.first_ts_ns then n.last_ts_ns - n.first_ts_ns else 0 end as wall_ns,
    coalesce(s.unknown_ns, 0) as unknown_ns, coalesce(s.network_ns, 0) as network_ns,
    coalesce(s.broker_ns, 0) as broker_ns, coalesce(s.client_ns, 0) as client_ns, coalesce(s.idle_ns, 0) as idle_ns,
    coalesce(b.blocked_ns, 0) as blocked_ns,
    coalesce(n.retransmitted_bytes, 0) as retransmitted_bytes,
    n.rtt_ns, n.client_rtt_ns,
    case when n.client_ip = n.server_ip then 'same host'
        when n.client_rtt_ns is null or n.rtt_ns is null or n.rtt_ns < 200000 then cast(null as string)
        when 4 * n.client_rtt_ns < n.rtt_ns then 'client'
        when 4 * n.client_rtt_ns > 3 * n.rtt_ns then 'server'
        else 'between' end as captured_near
from endpoints n
left join sums s on n.connection_id = s.connection_id
left join stops b on n.connection_id = b.connection_id
