-- One row per connection: where its time went. Each moment has one owner, the first of those that had a reason to wait.
with spans as (
    -- nobody can tell: bytes are missing, a direction is, or all is encrypted
    select connection_id, 1 as owner, since_ts_ns as begin_ts_ns, ts_ns as end_ts_ns, cast(null as boolean) as to_server,
        cast(null as bigint) as acked_ns
    from gaps
    union all
    select connection_id, 1, first_ts_ns, last_ts_ns, cast(null as boolean), cast(null as bigint) from endpoints
    where unreadable is not null or protocol = 'unknown' or protocol is null
    union all
    -- one side owes the other an answer; nobody can tell whether it came where bytes are missing
    select connection_id, case when ended_by = 'gap' or ended_by = 'evicted' then 1 else 3 end, publish_ts_ns,
        coalesce(confirm_ts_ns, end_ts_ns), case when confirm_ts_ns is not null then true end,
        request_acked_ts_ns - publish_ts_ns
    from confirms
    union all
    select connection_id,
        case when ended_by = 'gap' or ended_by = 'evicted' then 1 when from_client then 3 else 4 end,
        request_ts_ns, coalesce(response_ts_ns, end_ts_ns),
        case when response_ts_ns is not null then coalesce(from_client, false) end, request_acked_ts_ns - request_ts_ns
    from rpcs
    union all
    select connection_id, case when ended_by = 'gap' or ended_by = 'evicted' then 1 else 4 end, deliver_ts_ns,
        coalesce(settle_ts_ns, end_ts_ns), case when settle_ts_ns is not null and outcome <> 'auto' then false end,
        request_acked_ts_ns - deliver_ts_ns
    from settlements
    where ended_by = 'gap' or ended_by = 'evicted' or (outcome <> 'auto' and outcome <> 'unknown')
    union all
    -- who waits for each confirm publishes again when it has come, and that is seen a way later: near the broker
    select c.connection_id, 2, c.confirm_ts_ns, c.confirm_ts_ns + n.client_rtt_ns, cast(null as boolean),
        cast(null as bigint)
    from paces p
    join endpoints n on p.connection_id = n.connection_id
    join confirms c on p.connection_id = c.connection_id and p.channel = c.channel and p.channel_epoch = c.channel_epoch
    where p.waits_for_each and p.turns_with_rtt and 4.0 * n.client_rtt_ns > 3.0 * n.rtt_ns
    union all
    -- an acknowledgement opened the window of a prefetch, and messages waited for it: it was on its way to the broker
    select f.connection_id, 2, f.end_ts_ns, f.end_ts_ns + n.rtt_ns - n.client_rtt_ns, cast(null as boolean),
        cast(null as bigint)
    from flow_control f join endpoints n on f.connection_id = n.connection_id
    where f.cause = 'prefetch' and f.evidence = 'proven' and n.rtt_ns > n.client_rtt_ns
    union all
    -- bytes were not acknowledged: they were lost and sent again, held until an acknowledgement came, or the link was full
    select connection_id, 2, start_ts_ns, end_ts_ns, cast(null as boolean), cast(null as bigint) from tcp_delays
    where kind = 'retransmission' or kind = 'held-write' or kind = 'full-link'
    union all
    -- one side stops the other
    select connection_id, case when side = 'server' then 3 else 4 end, start_ts_ns,
        coalesce(end_ts_ns, start_ts_ns + duration_ns), cast(null as boolean), cast(null as bigint)
    from flow_control
),
inside as (
    select s.connection_id, s.owner, s.begin_ts_ns as since_ts_ns, s.acked_ns,
        case when s.begin_ts_ns > n.first_ts_ns then s.begin_ts_ns else n.first_ts_ns end as begin_ts_ns,
        case when s.end_ts_ns < n.last_ts_ns then s.end_ts_ns else n.last_ts_ns end as end_ts_ns,
        case when s.to_server then coalesce(n.rtt_ns - n.client_rtt_ns, 0)
            when s.to_server is not null then coalesce(n.client_rtt_ns, 0) end as rtt_ns
    from spans s join endpoints n on s.connection_id = n.connection_id
    where s.begin_ts_ns < s.end_ts_ns and s.begin_ts_ns < n.last_ts_ns and s.end_ts_ns > n.first_ts_ns
),
ways as (
    -- the way: what is asked is not there, or its answer not here, before a round trip is over. That is no longer than
    -- until TCP acknowledged what was asked, and it is longer where that took longer than any host holds it back
    select connection_id, owner, begin_ts_ns, end_ts_ns,
        since_ts_ns + case when acked_ns < rtt_ns then acked_ns when acked_ns - 200000000 > rtt_ns then acked_ns - 200000000
            else rtt_ns end as way_ts_ns
    from inside
),
begun as (
    -- how far those reach that begin at a moment: of the first owner, of the first two, and so on; the way is the second's
    select connection_id, begin_ts_ns, max(case when owner = 1 then end_ts_ns end) as end_1_ts_ns,
        max(case when owner <= 2 or end_ts_ns < way_ts_ns then end_ts_ns else way_ts_ns end) as end_2_ts_ns,
        max(case when owner <= 3 or end_ts_ns < way_ts_ns then end_ts_ns else way_ts_ns end) as end_3_ts_ns,
        max(end_ts_ns) as end_4_ts_ns
    from ways group by connection_id, begin_ts_ns
),
reached as (
    -- and how far those reach that begin before
    select connection_id, begin_ts_ns, end_1_ts_ns, end_2_ts_ns, end_3_ts_ns, end_4_ts_ns,
        max(end_1_ts_ns) over (partition by connection_id order by begin_ts_ns nulls last
            rows between unbounded preceding and 1 preceding) as to_1_ts_ns,
        max(end_2_ts_ns) over (partition by connection_id order by begin_ts_ns nulls last
            rows between unbounded preceding and 1 preceding) as to_2_ts_ns,
        max(end_3_ts_ns) over (partition by connection_id order by begin_ts_ns nulls last
            rows between unbounded preceding and 1 preceding) as to_3_ts_ns,
        max(end_4_ts_ns) over (partition by connection_id order by begin_ts_ns nulls last
            rows between unbounded preceding and 1 preceding) as to_4_ts_ns
    from begun
),
sums as (
    -- the time of the first owner, of the first two together, and so on: of each moment what those before it leave
    select connection_id,
        cast(sum(case when to_1_ts_ns >= end_1_ts_ns then 0 when to_1_ts_ns > begin_ts_ns then end_1_ts_ns - to_1_ts_ns
            when end_1_ts_ns > begin_ts_ns then end_1_ts_ns - begin_ts_ns else 0 end) as bigint) as to_1_ns,
        cast(sum(case when to_2_ts_ns >= end_2_ts_ns then 0 when to_2_ts_ns > begin_ts_ns then end_2_ts_ns - to_2_ts_ns
            when end_2_ts_ns > begin_ts_ns then end_2_ts_ns - begin_ts_ns else 0 end) as bigint) as to_2_ns,
        cast(sum(case when to_3_ts_ns >= end_3_ts_ns then 0 when to_3_ts_ns > begin_ts_ns then end_3_ts_ns - to_3_ts_ns
            when end_3_ts_ns > begin_ts_ns then end_3_ts_ns - begin_ts_ns else 0 end) as bigint) as to_3_ns,
        cast(sum(case when to_4_ts_ns >= end_4_ts_ns then 0 when to_4_ts_ns > begin_ts_ns then end_4_ts_ns - to_4_ts_ns
            when end_4_ts_ns > begin_ts_ns then end_4_ts_ns - begin_ts_ns else 0 end) as bigint) as to_4_ns
    from reached group by connection_id
),
stops as (
    select connection_id, cast(sum(duration_ns) as bigint) as blocked_ns
    from flow_control where cause = 'connection-blocked' group by connection_id
)
select n.connection_id, n.client, n.server, n.client_ip, n.client_port, n.server_ip, n.server_port,
    n.first_ts_ns, n.last_ts_ns,
    case when n.last_ts_ns > n.first_ts_ns then n.last_ts_ns - n.first_ts_ns else 0 end as wall_ns,
    coalesce(s.to_1_ns, 0) as unknown_ns, coalesce(s.to_2_ns - s.to_1_ns, 0) as network_ns,
    coalesce(s.to_3_ns - s.to_2_ns, 0) as broker_ns, coalesce(s.to_4_ns - s.to_3_ns, 0) as client_ns,
    case when n.last_ts_ns > n.first_ts_ns then n.last_ts_ns - n.first_ts_ns else 0 end - coalesce(s.to_4_ns, 0) as idle_ns,
    coalesce(b.blocked_ns, 0) as blocked_ns,
    coalesce(n.retransmitted_bytes, 0) as retransmitted_bytes,
    n.rtt_ns, n.client_rtt_ns,
    case when n.client_ip = n.server_ip then 'same host'
        when n.client_rtt_ns is null or n.rtt_ns is null or n.rtt_ns < 200000 then cast(null as string)
        when 4.0 * n.client_rtt_ns < n.rtt_ns then 'client'
        when 4.0 * n.client_rtt_ns > 3.0 * n.rtt_ns then 'server'
        else 'between' end as captured_near
from endpoints n
left join sums s on n.connection_id = s.connection_id
left join stops b on n.connection_id = b.connection_id
