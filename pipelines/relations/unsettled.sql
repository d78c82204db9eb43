-- One row per consumer with deliveries that it does not settle, and per limit of these that is full at its end: its own, or
-- that of its channel. None where their settlement may lie in a gap, or the broker closed the channel or connection.
-- None without rows of settlements.
with errors as (
    select connection_id, channel, channel_epoch, method
    from channel_errors where not from_client group by connection_id, channel, channel_epoch, method
),
dead as (
    select connection_id from dead_paths group by connection_id
),
windows as (
    -- the last time that a limit was full
    select connection_id, channel, channel_epoch, consumer_tag,
        max_by(start_ts_ns, coalesce(end_ts_ns, start_ts_ns + duration_ns)) as since_ts_ns,
        max(coalesce(end_ts_ns, start_ts_ns + duration_ns)) as until_ts_ns
    from flow_control where cause = 'prefetch' group by connection_id, channel, channel_epoch, consumer_tag
),
others as (
    select server, coalesce(vhost, '') as vhost, queue, count(*) as consumers,
        count(*) filter (where deliveries = 0 and ended_ts_ns is null) as idle
    from consumers group by server, coalesce(vhost, ''), queue
),
opens as (
    select connection_id, channel, channel_epoch, consumer_tag,
        min(case when outcome = 'none' then deliver_ts_ns end) as first_ts_ns,
        max(case when outcome = 'none' then deliver_ts_ns end) as last_ts_ns,
        max(case when outcome <> 'none' then deliver_ts_ns end) as settled_ts_ns,
        min_by(deliver_packet, deliver_frame_no) filter (where outcome = 'none') as packet,
        min_by(deliver_capture, deliver_frame_no) filter (where outcome = 'none') as capture
    from settlements group by connection_id, channel, channel_epoch, consumer_tag
)
select c.client, c.server, c.vhost, c.connection_id, c.channel, c.channel_epoch, c.consumer_tag, c.called, c.queue,
    c.prefetch, c.deliveries, c.settlements, c.unsettled, c.settle_max_ns, c.ended_by,
    n.last_ts_ns - c.oldest_open_ts_ns as oldest_ns,
    -- others are delivered and settled in between
    p.connection_id is not null as passed_over,
    z.connection_id is not null as path_died,
    case when f.connection_id is not null then f.consumer_tag is null end as is_shared,
    f.since_ts_ns as full_since_ts_ns, coalesce(c.ended_ts_ns, e.last_ts_ns) as until_ts_ns, o.idle as others_idle,
    c.first_ts_ns, c.last_ts_ns,
    coalesce(p.packet, c.first_packet) as first_packet, coalesce(p.capture, c.first_capture) as first_capture,
    c.last_packet, c.last_capture
from consumers c
join endpoints n on c.connection_id = n.connection_id
join servers e on n.server = e.server
left join errors x on c.connection_id = x.connection_id
    and (x.method = 'connection.close' or (x.channel = c.channel and x.channel_epoch = c.channel_epoch))
left join dead z on c.connection_id = z.connection_id
-- full until its end, longer than all that it settled took
left join windows f on c.connection_id = f.connection_id and c.channel = f.channel and c.channel_epoch = f.channel_epoch
    and (f.consumer_tag = c.consumer_tag or f.consumer_tag is null) and c.prefetch >= 2
    and f.until_ts_ns >= coalesce(c.ended_ts_ns, n.last_ts_ns) - 1000000000
    and coalesce(c.ended_ts_ns, e.last_ts_ns) - f.since_ts_ns >= 5000000000
    and coalesce(c.ended_ts_ns, e.last_ts_ns) - f.since_ts_ns > 5.0 * coalesce(c.settle_max_ns, 0)
left join others o on c.server = o.server and coalesce(c.vhost, '') = o.vhost and c.queue = o.queue
    and o.idle = o.consumers - 1 and o.idle > 0
left join opens p on c.connection_id = p.connection_id and c.channel = p.channel and c.channel_epoch = p.channel_epoch
    and c.consumer_tag = p.consumer_tag and c.unsettled >= 3
    and p.last_ts_ns - p.first_ts_ns > 2.0 * c.settle_max_ns and p.settled_ts_ns - p.first_ts_ns > 2.0 * c.settle_max_ns
where x.connection_id is null and c.unknown = 0 and c.unsettled > 0
