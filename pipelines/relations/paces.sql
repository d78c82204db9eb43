-- One row per channel with confirms: how publishes and confirms take turns.
-- None without rows of confirms.
with placed as (
    select connection_id, channel, channel_epoch, publish_ts_ns, publish_frame_no, publish_packet, publish_capture,
        confirm_ts_ns, confirm_frame_no, latency_ns,
        lag(confirm_frame_no) over (partition by connection_id, channel, channel_epoch order by publish_frame_no nulls last)
            as former_frame_no,
        lag(confirm_ts_ns) over (partition by connection_id, channel, channel_epoch order by publish_frame_no nulls last)
            as former_ts_ns,
        publish_ts_ns - lag(publish_ts_ns) over (partition by connection_id, channel, channel_epoch
            order by publish_frame_no nulls last) as turn_ns
    from confirms where channel is not null and publish_ts_ns is not null and stream is null
        and not coalesce(incomplete, false)
),
turns as (
    select connection_id, channel, channel_epoch, turn_ns,
        row_number() over (partition by connection_id, channel, channel_epoch
            order by turn_ns nulls last, publish_frame_no nulls last) as place,
        count(*) over (partition by connection_id, channel, channel_epoch) as turns
    from placed where former_frame_no < publish_frame_no
),
medians as (
    select connection_id, channel, channel_epoch, turn_ns from turns where 2 * place = turns or 2 * place = turns + 1
)
select n.client, n.server, p.connection_id, p.channel, p.channel_epoch, count(*) as publishes,
    count(*) filter (where p.former_frame_no < p.publish_frame_no) as alone,
    count(*) >= 20 and 100.0 * (count(*) filter (where p.former_frame_no < p.publish_frame_no) + 1) >= 95.0 * count(*)
        as waits_for_each,
    coalesce(max(n.rtt_ns) >= 1000000 and 10.0 * max(m.turn_ns) >= 9.0 * max(n.rtt_ns)
        and 10.0 * max(m.turn_ns) <= 12.0 * max(n.rtt_ns), false) as turns_with_rtt,
    cast(coalesce(sum(p.latency_ns), 0) as bigint) as waited_ns,
    cast(coalesce(sum(case when p.former_frame_no < p.publish_frame_no then p.publish_ts_ns - p.former_ts_ns end), 0)
        as bigint) as paused_ns,
    max(m.turn_ns) as turn_p50_ns, min(p.latency_ns) as wait_min_ns,
    min(p.publish_ts_ns) as first_ts_ns, max(p.publish_ts_ns) as last_ts_ns,
    min_by(p.publish_packet, p.publish_frame_no) as first_packet, max_by(p.publish_packet, p.publish_frame_no) as last_packet,
    min_by(p.publish_capture, p.publish_frame_no) as first_capture,
    max_by(p.publish_capture, p.publish_frame_no) as last_capture
from placed p
join endpoints n on p.connection_id = n.connection_id
left join medians m on p.connection_id = m.connection_id and p.channel = m.channel and p.channel_epoch = m.channel_epoch
group by n.client, n.server, p.connection_id, p.channel, p.channel_epoch
