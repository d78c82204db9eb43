-- One row per time of more than a second in which a broker answered nothing to anybody and delivered nothing, though two
-- connections or more waited for it, and TCP had acknowledged what they asked. None of brokers with connections that are
-- unreadable or lack bytes, and none while it blocked publishers. Of a broker the twenty longest at most.
-- None without rows of endpoints.
with waits as (
    select n.server, c.connection_id, c.publish_ts_ns as since_ts_ns, coalesce(c.confirm_ts_ns, c.end_ts_ns) as until_ts_ns,
        c.confirm_ts_ns is null as is_open, c.routing_key as what, c.request_acked_ts_ns as acked_ts_ns,
        c.publish_packet as packet, c.publish_capture as capture, c.publish_frame_no as frame_no
    from confirms c join endpoints n on c.connection_id = n.connection_id
    where coalesce(c.confirm_ts_ns, c.end_ts_ns) - c.publish_ts_ns > 1000000000 + 10.0 * coalesce(n.rtt_ns, 0)
        and coalesce(c.ended_by, '') <> 'gap' and coalesce(c.ended_by, '') <> 'evicted' and not coalesce(c.incomplete, false)
    union all
    select n.server, r.connection_id, r.request_ts_ns, coalesce(r.response_ts_ns, r.end_ts_ns), r.response_ts_ns is null,
        r.request, r.request_acked_ts_ns, r.request_packet, r.request_capture, r.request_frame_no
    from rpcs r join endpoints n on r.connection_id = n.connection_id
    where r.from_client and coalesce(r.response_ts_ns, r.end_ts_ns) - r.request_ts_ns > 1000000000 + 10.0 * coalesce(n.rtt_ns, 0)
        and coalesce(r.ended_by, '') <> 'gap' and coalesce(r.ended_by, '') <> 'evicted'
    union all
    select server, connection_id, first_ts_ns, closed_ts_ns, true, 'connection.start', cast(null as bigint), first_packet,
        first_capture, cast(0 as bigint)
    from endpoints
    where handshake_outcome = 'client-timeout' and handshake_stage = 'header' and closed_ts_ns - first_ts_ns > 1000000000
),
ordered as (
    -- those that follow each other within a second may be of one time
    select server, connection_id, since_ts_ns, until_ts_ns,
        max(until_ts_ns) over (partition by server
            order by since_ts_ns nulls last, connection_id nulls last, frame_no nulls last, what nulls last
            rows between unbounded preceding and 1 preceding) as former_ts_ns
    from waits
),
numbered as (
    select server, connection_id, since_ts_ns, until_ts_ns,
        cast(sum(case when since_ts_ns - former_ts_ns <= 1000000000 then 0 else 1 end) over (partition by server
            order by since_ts_ns nulls last, connection_id nulls last, until_ts_ns nulls last
            rows between unbounded preceding and current row) as bigint) as number
    from ordered
),
spans as (
    select server, number, min(since_ts_ns) as since_ts_ns, max(until_ts_ns) as until_ts_ns,
        row_number() over (partition by server order by max(until_ts_ns) - min(since_ts_ns) desc nulls last, number nulls last) as place
    from numbered group by server, number having count(distinct connection_id) >= 2
),
blocked as (
    select n.server, s.since_ts_ns from spans s
    join endpoints n on s.server = n.server
    join flow_control f on f.connection_id = n.connection_id and f.cause = 'connection-blocked'
        and f.start_ts_ns < s.until_ts_ns and coalesce(f.end_ts_ns, n.last_ts_ns) > s.since_ts_ns
    where s.place <= 20
    group by n.server, s.since_ts_ns
),
looked as (
    select s.server, s.since_ts_ns, s.until_ts_ns
    from spans s join covered v on s.server = v.server
    left join blocked b on s.server = b.server and s.since_ts_ns = b.since_ts_ns
    where s.place <= 20 and b.server is null
),
spoken as (
    -- what the broker sent then, and within ten seconds of its end
    select s.server, s.since_ts_ns as span_ts_ns, s.until_ts_ns as end_ts_ns, c.confirm_ts_ns as ts_ns
    from looked s join endpoints n on s.server = n.server join confirms c on c.connection_id = n.connection_id
        and c.confirm_ts_ns > s.since_ts_ns and c.confirm_ts_ns < s.until_ts_ns + 10000000000
    union all
    select s.server, s.since_ts_ns, s.until_ts_ns, r.response_ts_ns
    from looked s join endpoints n on s.server = n.server join rpcs r on r.connection_id = n.connection_id and r.from_client
        and r.response_ts_ns > s.since_ts_ns and r.response_ts_ns < s.until_ts_ns + 10000000000
    union all
    select s.server, s.since_ts_ns, s.until_ts_ns, d.deliver_ts_ns
    from looked s join endpoints n on s.server = n.server join settlements d on d.connection_id = n.connection_id
        and d.deliver_ts_ns > s.since_ts_ns and d.deliver_ts_ns < s.until_ts_ns + 10000000000
    union all
    select s.server, s.since_ts_ns, s.until_ts_ns, d.ts_ns
    from looked s join endpoints n on s.server = n.server join stream_deliveries d on d.connection_id = n.connection_id
        and d.ts_ns > s.since_ts_ns and d.ts_ns < s.until_ts_ns + 10000000000
    union all
    select s.server, s.since_ts_ns, s.until_ts_ns, o.ts_ns
    from looked s join endpoints n on s.server = n.server join operations o on o.connection_id = n.connection_id
        and not o.from_client and o.ts_ns > s.since_ts_ns and o.ts_ns < s.until_ts_ns + 10000000000
    union all
    select server, since_ts_ns, until_ts_ns, since_ts_ns from looked
),
silences as (
    select server, ts_ns as since_ts_ns,
        coalesce(lag(ts_ns) over (partition by server, span_ts_ns order by ts_ns desc nulls last), end_ts_ns) as until_ts_ns
    from spoken
)
select s.server, s.since_ts_ns, s.until_ts_ns, count(distinct w.connection_id) as connections,
    count(distinct case when w.is_open then w.connection_id end) as gave_up,
    count(distinct w.what) as kinds, min(w.what) as what,
    min_by(w.connection_id, lpad(cast(w.since_ts_ns as string), 20, '0') || lpad(cast(w.frame_no as string), 12, '0') || cast(w.connection_id as string)) as connection_id,
    min_by(w.packet, lpad(cast(w.since_ts_ns as string), 20, '0') || lpad(cast(w.packet as string), 12, '0') || w.capture) as first_packet,
    min_by(w.capture, lpad(cast(w.since_ts_ns as string), 20, '0') || lpad(cast(w.packet as string), 12, '0') || w.capture) as first_capture
from silences s
join waits w on s.server = w.server and w.since_ts_ns < s.until_ts_ns and w.until_ts_ns > s.since_ts_ns
where s.until_ts_ns - s.since_ts_ns > 1000000000
group by s.server, s.since_ts_ns, s.until_ts_ns
having count(distinct w.connection_id) >= 2 and count(distinct w.what) >= 2 and count(w.acked_ts_ns) > 0
