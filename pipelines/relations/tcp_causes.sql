-- One row per connection, side and kind of delay by TCP: how much of it there is, and which waits for answers it explains.
with delays as (
    select connection_id, from_client, kind, start_ts_ns, end_ts_ns, duration_ns, bytes, packet, capture, of_packet, of_capture
    from tcp_delays where kind <> 'delayed-ack'
),
kinds as (
    select connection_id, from_client, kind, count(*) as delays, cast(sum(duration_ns) as bigint) as total_ns,
        max(duration_ns) as longest_ns, cast(coalesce(sum(bytes), 0) as bigint) as bytes,
        min(start_ts_ns) as first_ts_ns, max(end_ts_ns) as last_ts_ns,
        min(coalesce(of_packet, packet)) as first_packet, max(packet) as last_packet,
        min(capture) as first_capture, max(capture) as last_capture
    from delays group by connection_id, from_client, kind
),
waits as (
    select connection_id, 'publish' as asked, publish_frame_no as frame_no, publish_ts_ns as since_ts_ns,
        confirm_ts_ns as until_ts_ns, latency_ns
    from confirms where latency_ns >= 10000000
    union all
    select connection_id, 'request', request_frame_no, request_ts_ns, response_ts_ns, latency_ns
    from rpcs where latency_ns >= 10000000
    union all
    select connection_id, 'delivery', deliver_frame_no, deliver_ts_ns, settle_ts_ns, latency_ns
    from settlements where latency_ns >= 10000000
),
moments as (
    -- what ended before a moment: a wait holds what ended between its own two
    select w.connection_id, k.from_client, k.kind, w.since_ts_ns as ts_ns, 1 as place, w.asked, w.frame_no, w.latency_ns,
        cast(0 as bigint) as took_ns
    from waits w join kinds k on w.connection_id = k.connection_id
    union all
    select w.connection_id, k.from_client, k.kind, w.until_ts_ns, 3, w.asked, w.frame_no, w.latency_ns, 0
    from waits w join kinds k on w.connection_id = k.connection_id
    union all
    select connection_id, from_client, kind, end_ts_ns, 2, cast(null as string), cast(null as bigint),
        cast(null as bigint), duration_ns
    from delays
),
sums as (
    select connection_id, from_client, kind, place, asked, frame_no, latency_ns,
        cast(sum(took_ns) over (partition by connection_id, from_client, kind order by ts_ns nulls last, place nulls last
            rows between unbounded preceding and current row) as bigint) as sum_ns
    from moments
),
held as (
    select connection_id, from_client, kind, asked, frame_no, latency_ns,
        max(case when place = 3 then sum_ns end) - min(case when place = 1 then sum_ns end) as delayed_ns
    from sums where place <> 2 group by connection_id, from_client, kind, asked, frame_no, latency_ns
),
explained as (
    select connection_id, from_client, kind,
        count(*) filter (where 2 * delayed_ns >= latency_ns) as explained,
        max(case when 2 * delayed_ns >= latency_ns then latency_ns end) as explained_ns
    from held group by connection_id, from_client, kind
),
others as (
    -- the longest of all that no kind explains
    select connection_id, max(latency_ns) as others_ns
    from (
        select connection_id, asked, frame_no, latency_ns, max(case when 2 * delayed_ns >= latency_ns then 1 else 0 end) as hit
        from held group by connection_id, asked, frame_no, latency_ns
    ) h where hit = 0 group by connection_id
)
select n.client, n.server, k.connection_id, k.from_client, k.kind, k.delays, k.total_ns, k.longest_ns, k.bytes,
    coalesce(e.explained, 0) as explained, e.explained_ns, o.others_ns,
    k.first_ts_ns, k.last_ts_ns, k.first_packet, k.last_packet, k.first_capture, k.last_capture
from kinds k
join endpoints n on k.connection_id = n.connection_id
left join explained e on k.connection_id = e.connection_id and k.from_client = e.from_client and k.kind = e.kind
left join others o on k.connection_id = o.connection_id
