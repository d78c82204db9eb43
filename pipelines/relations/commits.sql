-- One row per channel with publishes in transactions: how commits and their answers take turns, as in paces.
-- None without rows of rpcs.
with asked as (
    select connection_id, channel, channel_epoch, latency_ns, request_ts_ns, response_ts_ns, request_packet, response_packet,
        request_capture, response_capture, request_frame_no,
        lag(response_frame_no) over (partition by connection_id, channel, channel_epoch
            order by request_frame_no nulls last) as former_frame_no
    from rpcs where request = 'tx.commit' and latency_ns is not null
),
sent as (
    select connection_id, channel, channel_epoch, cast(sum(count) as bigint) as publishes
    from published group by connection_id, channel, channel_epoch
),
got as (
    select connection_id, channel, channel_epoch from settlements group by connection_id, channel, channel_epoch
)
select n.client, n.server, c.connection_id, c.channel, c.channel_epoch, p.publishes, count(*) as commits,
    count(*) filter (where c.former_frame_no is null or c.former_frame_no < c.request_frame_no) as alone,
    g.connection_id is not null as consumes,
    cast(sum(c.latency_ns) as bigint) as waited_ns,
    min(c.request_ts_ns) as first_ts_ns, max(c.response_ts_ns) as last_ts_ns,
    min_by(c.request_packet, c.request_frame_no) as first_packet,
    max_by(c.response_packet, c.request_frame_no) as last_packet,
    min_by(c.request_capture, c.request_frame_no) as first_capture,
    max_by(c.response_capture, c.request_frame_no) as last_capture
from asked c
join endpoints n on c.connection_id = n.connection_id
join sent p on c.connection_id = p.connection_id and c.channel = p.channel and c.channel_epoch = p.channel_epoch
left join got g on c.connection_id = g.connection_id and c.channel = g.channel and c.channel_epoch = g.channel_epoch
group by n.client, n.server, c.connection_id, c.channel, c.channel_epoch, p.publishes, g.connection_id
