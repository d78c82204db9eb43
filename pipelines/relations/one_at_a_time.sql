-- One row per consumer that gets the next message when it has settled the one before, whatever its prefetch is said to be.
-- None without rows of settlements.
with known as (
    select connection_id, channel, channel_epoch, consumer_tag
    from consumers where prefetch is null and begun_ts_ns is null and settlements >= 50
),
placed as (
    select s.connection_id, s.channel, s.channel_epoch, s.consumer_tag, s.deliver_ts_ns,
        lag(s.settle_ts_ns) over (partition by s.connection_id, s.channel, s.channel_epoch, s.consumer_tag
            order by s.deliver_frame_no nulls last) as settle_ts_ns
    from settlements s
    join known k on s.connection_id = k.connection_id and s.channel = k.channel and s.channel_epoch = k.channel_epoch
        and s.consumer_tag = k.consumer_tag
)
select connection_id, channel, channel_epoch, consumer_tag,
    count(*) filter (where deliver_ts_ns >= settle_ts_ns and deliver_ts_ns - settle_ts_ns < 10000000) as waits
from placed group by connection_id, channel, channel_epoch, consumer_tag
having 20 * count(*) filter (where deliver_ts_ns >= settle_ts_ns and deliver_ts_ns - settle_ts_ns < 10000000)
    >= 19 * (count(*) - 1)
