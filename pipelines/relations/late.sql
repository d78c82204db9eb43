-- One row per publish or request that the broker answered after more than a second and ten round trips, though nothing
-- that the capture shows stopped it meanwhile: no block, closed window, full link, retransmission or stall of the broker,
-- and no late confirm a request.
-- None without rows of endpoints.
with waits as (
    select c.connection_id, 'publish' as asked, cast(null as string) as request, c.publish_frame_no as frame_no,
        c.publish_ts_ns as since_ts_ns, c.confirm_ts_ns as until_ts_ns, c.latency_ns, c.publish_packet as since_packet,
        c.publish_capture as since_capture, c.confirm_packet as until_packet, c.confirm_capture as until_capture,
        c.request_acked_ts_ns as acked_ts_ns
    from confirms c join endpoints n on c.connection_id = n.connection_id
    where c.latency_ns > 1000000000 + 10.0 * coalesce(n.rtt_ns, 0)
    union all
    select r.connection_id, 'request', r.request, r.request_frame_no, r.request_ts_ns, r.response_ts_ns, r.latency_ns,
        r.request_packet, r.request_capture, r.response_packet, r.response_capture, r.request_acked_ts_ns
    from rpcs r join endpoints n on r.connection_id = n.connection_id
    where r.from_client and r.latency_ns > 1000000000 + 10.0 * coalesce(n.rtt_ns, 0)
),
stops as (
    select f.connection_id, f.start_ts_ns, coalesce(f.end_ts_ns, n.last_ts_ns) as end_ts_ns
    from flow_control f join endpoints n on f.connection_id = n.connection_id
    where (f.cause = 'connection-blocked' or f.cause = 'channel-flow' or f.cause = 'zero-window')
        and (f.end_ts_ns is null or f.end_ts_ns - f.start_ts_ns >= 100000000)
    union all
    select connection_id, start_ts_ns, end_ts_ns from tcp_delays
    where kind = 'full-link' or (kind = 'retransmission' and duration_ns >= 100000000)
    union all
    select n.connection_id, s.since_ts_ns, s.until_ts_ns from stalls s join endpoints n on s.server = n.server
),
moments as (
    -- stops where they begin, waits where they end; at one time the wait is first
    select connection_id, asked, until_ts_ns as ts_ns, 1 as turn, cast(null as bigint) as end_ts_ns, request, frame_no,
        since_ts_ns, latency_ns, since_packet, since_capture, until_packet, until_capture, acked_ts_ns
    from waits
    union all
    select s.connection_id, a.asked, s.start_ts_ns, 2, s.end_ts_ns, cast(null as string), cast(null as bigint),
        cast(null as bigint), cast(null as bigint), cast(null as bigint), cast(null as string), cast(null as bigint),
        cast(null as string), cast(null as bigint)
    from stops s join (select connection_id, asked from waits group by connection_id, asked) a
        on s.connection_id = a.connection_id
    union all
    select connection_id, 'request', since_ts_ns, 2, until_ts_ns, cast(null as string), cast(null as bigint),
        cast(null as bigint), cast(null as bigint), cast(null as bigint), cast(null as string), cast(null as bigint),
        cast(null as string), cast(null as bigint)
    from waits where asked = 'publish'
),
reached as (
    select connection_id, asked, turn, request, frame_no, since_ts_ns, ts_ns as until_ts_ns, latency_ns, since_packet,
        since_capture, until_packet, until_capture, acked_ts_ns,
        max(end_ts_ns) over (partition by connection_id, asked
            order by ts_ns nulls last, turn nulls last, frame_no nulls last, end_ts_ns nulls last
            rows between unbounded preceding and current row) as stopped_ts_ns
    from moments
)
select r.connection_id, r.asked, r.request, r.frame_no, r.since_ts_ns, r.until_ts_ns, r.latency_ns, r.since_packet,
    r.since_capture, r.until_packet, r.until_capture, r.acked_ts_ns
from reached r join endpoints n on r.connection_id = n.connection_id
where r.turn = 1 and coalesce(r.stopped_ts_ns <= r.since_ts_ns, true)
    and (n.protocol = 'amqp-0-9-1' or n.protocol = 'rabbitmq-stream') and n.lost_bytes = 0
