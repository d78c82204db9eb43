-- How many messages wait on each consumer and channel, in buckets of time: not yet acknowledged, not yet confirmed.
with steps as (
    -- each of a frame of its own: it begins one wait, or ends several
    select true as is_unacked, connection_id, channel, channel_epoch, consumer_tag, deliver_ts_ns as ts_ns,
        deliver_frame_no as frame_no, 1 as step, cast(null as bigint) as waited_ns
    from settlements
    where deliver_ts_ns is not null and outcome <> 'auto' and outcome <> 'unknown' and kind = 'deliver'
        and not coalesce(incomplete, false)
    union all
    select true, connection_id, channel, channel_epoch, consumer_tag, max(coalesce(settle_ts_ns, end_ts_ns)),
        coalesce(settle_frame_no, cast(4611686018427387904 as bigint)), -count(*),
        max(coalesce(settle_ts_ns, end_ts_ns) - deliver_ts_ns)
    from settlements
    where deliver_ts_ns is not null and coalesce(settle_ts_ns, end_ts_ns) is not null and outcome <> 'auto'
        and outcome <> 'unknown' and kind = 'deliver' and not coalesce(incomplete, false)
        and coalesce(ended_by, '') <> 'capture-end'
    group by connection_id, channel, channel_epoch, consumer_tag,
        coalesce(settle_frame_no, cast(4611686018427387904 as bigint))
    union all
    select false, connection_id, channel, channel_epoch, cast(null as string), publish_ts_ns, publish_frame_no, 1,
        cast(null as bigint)
    from confirms where publish_ts_ns is not null and channel is not null and not coalesce(incomplete, false)
    union all
    select false, connection_id, channel, channel_epoch, cast(null as string),
        max(coalesce(confirm_ts_ns, end_ts_ns)), coalesce(confirm_frame_no, cast(4611686018427387904 as bigint)), -count(*),
        max(coalesce(confirm_ts_ns, end_ts_ns) - publish_ts_ns)
    from confirms
    where publish_ts_ns is not null and channel is not null and coalesce(confirm_ts_ns, end_ts_ns) is not null
        and not coalesce(incomplete, false) and coalesce(ended_by, '') <> 'capture-end'
    group by connection_id, channel, channel_epoch, coalesce(confirm_frame_no, cast(4611686018427387904 as bigint))
),
heights as (
    select is_unacked, connection_id, channel, channel_epoch, consumer_tag, frame_no, ts_ns, step, waited_ns,
        cast(sum(step) over (partition by is_unacked, connection_id, channel, channel_epoch, consumer_tag
            order by frame_no nulls last rows between unbounded preceding and current row) as bigint) as height
    from steps
),
placed as (
    select h.is_unacked, h.connection_id, h.channel, h.channel_epoch, h.consumer_tag, h.frame_no, h.height, h.step, h.waited_ns,
        h.ts_ns - h.ts_ns % nullif(w.width_ns, 0) as ts_ns, w.width_ns
    from heights h join clock w on w.id = 1
)
select p.connection_id, p.channel, p.channel_epoch, p.consumer_tag, p.ts_ns, max(p.width_ns) as width_ns,
    case when p.is_unacked then 'unacked' else 'unconfirmed' end as level,
    min(case when p.height < p.height - p.step then p.height else p.height - p.step end) as low,
    max(case when p.height > p.height - p.step then p.height else p.height - p.step end) as high,
    max_by(p.height, p.frame_no) as last,
    cast(max(case when p.is_unacked and c.prefetch > 0 then c.prefetch end) as bigint) as bound,
    max(p.waited_ns) as oldest_ns
from placed p
left join consumers c on p.connection_id = c.connection_id and p.channel = c.channel
    and p.channel_epoch = c.channel_epoch and p.consumer_tag = c.consumer_tag
group by p.connection_id, p.channel, p.channel_epoch, p.consumer_tag, p.ts_ns, p.is_unacked
