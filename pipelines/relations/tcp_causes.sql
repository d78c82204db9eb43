-- One row per connection, side and kind of delay by TCP: how much of it there is, and which waits for answers it explains.
-- None without rows of tcp_delays.
with delays as (
    select connection_id, from_client, kind, start_ts_ns, end_ts_ns, duration_ns, bytes, packet, capture,
        coalesce(of_packet, packet) as first_packet, coalesce(of_capture, capture) as first_capture,
        lpad(cast(start_ts_ns as string), 20, '0') || lpad(cast(coalesce(of_packet, packet) as string), 12, '0') || coalesce(of_capture, capture) as begin,
        lpad(cast(end_ts_ns as string), 20, '0') || lpad(cast(packet as string), 12, '0') || capture as until
    from tcp_delays where kind <> 'delayed-ack'
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
steps as (
    -- delays overlap: all segments of one loss are late together
    select connection_id, from_client, kind, start_ts_ns as ts_ns, 1 as step from delays where start_ts_ns < end_ts_ns
    union all
    select connection_id, from_client, kind, end_ts_ns, -1 from delays where start_ts_ns < end_ts_ns
    union all
    select d.connection_id, d.from_client, d.kind, w.ts_ns, 0
    from (select connection_id, since_ts_ns as ts_ns from waits union select connection_id, until_ts_ns from waits) w
    join (select connection_id, from_client, kind from delays group by connection_id, from_client, kind) d
        on w.connection_id = d.connection_id
),
moments as (
    select connection_id, from_client, kind, ts_ns, cast(sum(step) as bigint) as step
    from steps group by connection_id, from_client, kind, ts_ns
),
slices as (
    -- from one moment to the next: what was open before this moment
    select connection_id, from_client, kind, ts_ns,
        ts_ns - lag(ts_ns) over (partition by connection_id, from_client, kind order by ts_ns nulls last) as took_ns,
        cast(sum(step) over (partition by connection_id, from_client, kind order by ts_ns nulls last
            rows between unbounded preceding and current row) as bigint) - step as open
    from moments
),
sums as (
    select connection_id, from_client, kind, ts_ns,
        cast(sum(case when open > 0 then took_ns else 0 end) over (partition by connection_id, from_client, kind
            order by ts_ns nulls last rows between unbounded preceding and current row) as bigint) as sum_ns
    from slices
),
totals as (
    select connection_id, from_client, kind, max(sum_ns) as total_ns from sums group by connection_id, from_client, kind
),
kinds as (
    select d.connection_id, d.from_client, d.kind, count(*) as delays, coalesce(max(t.total_ns), 0) as total_ns,
        max(d.duration_ns) as longest_ns, cast(coalesce(sum(d.bytes), 0) as bigint) as bytes,
        min(d.start_ts_ns) as first_ts_ns, max(d.end_ts_ns) as last_ts_ns,
        min_by(d.first_packet, d.begin) as first_packet, max_by(d.packet, d.until) as last_packet,
        min_by(d.first_capture, d.begin) as first_capture, max_by(d.capture, d.until) as last_capture
    from delays d
    left join totals t on d.connection_id = t.connection_id and d.from_client = t.from_client and d.kind = t.kind
    group by d.connection_id, d.from_client, d.kind
),
ends as (
    -- the sums at both ends of each wait, by grouping: joined with each other they would be a product
    select w.connection_id, w.asked, w.frame_no, w.latency_ns, s.from_client, s.kind, s.sum_ns as since_ns,
        cast(null as bigint) as until_ns
    from waits w join sums s on w.connection_id = s.connection_id and w.since_ts_ns = s.ts_ns
    union all
    select w.connection_id, w.asked, w.frame_no, w.latency_ns, s.from_client, s.kind, cast(null as bigint), s.sum_ns
    from waits w join sums s on w.connection_id = s.connection_id and w.until_ts_ns = s.ts_ns
),
held as (
    select connection_id, asked, frame_no, latency_ns, from_client, kind, max(until_ns) - max(since_ns) as delayed_ns
    from ends group by connection_id, asked, frame_no, latency_ns, from_client, kind
),
explained as (
    select connection_id, from_client, kind,
        count(*) filter (where 2.0 * delayed_ns >= latency_ns) as explained,
        max(case when 2.0 * delayed_ns >= latency_ns then latency_ns end) as explained_ns
    from held group by connection_id, from_client, kind
),
others as (
    -- the longest of all that no kind explains
    select connection_id, max(latency_ns) as others_ns
    from (
        select connection_id, asked, frame_no, latency_ns, max(case when 2.0 * delayed_ns >= latency_ns then 1 else 0 end) as hit
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
