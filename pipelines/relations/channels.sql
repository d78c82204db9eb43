-- One row per channel epoch: how it was set up, what was done on it, how it ended.
with keys as (
    select connection_id, channel, channel_epoch, min(frame_no) as frame_no, min(ts_ns) as ts_ns
    from operations where channel > 0 group by connection_id, channel, channel_epoch
    union all
    select connection_id, channel, channel_epoch, min(first_frame_no), min(first_ts_ns)
    from published where channel is not null group by connection_id, channel, channel_epoch
    union all
    select connection_id, channel, channel_epoch, min(deliver_frame_no), min(deliver_ts_ns)
    from settlements where channel is not null group by connection_id, channel, channel_epoch
),
epochs as (
    select connection_id, channel, channel_epoch, min(ts_ns) as first_ts_ns
    from keys where channel_epoch is not null group by connection_id, channel, channel_epoch
),
methods as (
    select connection_id, channel, channel_epoch,
        min(case when method = 'channel.open' then ts_ns end) as opened_ts_ns,
        min_by(packet, case when method = 'channel.open' then frame_no end) as opened_packet,
        min_by(capture, case when method = 'channel.open' then frame_no end) as opened_capture,
        min(case when method = 'channel.close' then frame_no end) as close_frame_no,
        count(*) filter (where method = 'confirm.select') as selects,
        count(*) filter (where method = 'tx.select') as transactions,
        count(*) filter (where from_client and (method = 'queue.declare' or method = 'exchange.declare')) as declares,
        count(*) filter (where from_client and (method = 'queue.bind' or method = 'exchange.bind')) as binds,
        count(*) filter (where method = 'basic.consume') as consumes
    from operations group by connection_id, channel, channel_epoch
),
limits as (
    select connection_id, channel, channel_epoch, prefetch_count,
        row_number() over (partition by connection_id, channel, channel_epoch order by frame_no desc nulls last) as latest
    from operations where method = 'basic.qos'
),
sent as (
    select connection_id, channel, channel_epoch, cast(sum(count) as bigint) as publishes,
        cast(sum(bytes) as bigint) as bytes, max(last_ts_ns) as last_ts_ns,
        cast(sum(replies) as bigint) as replies, cast(sum(requests) as bigint) as calls,
        min_by(first_packet, first_frame_no) as first_packet, min_by(first_capture, first_frame_no) as first_capture
    from published group by connection_id, channel, channel_epoch
),
got as (
    select connection_id, channel, channel_epoch, count(*) filter (where kind = 'deliver' and not coalesce(incomplete, false)) as deliveries,
        count(*) filter (where kind = 'get' and not coalesce(incomplete, false)) as gets, max(deliver_ts_ns) as last_ts_ns
    from settlements group by connection_id, channel, channel_epoch
),
asked as (
    select connection_id, channel, channel_epoch, count(*) as requests,
        count(*) filter (where response = 'basic.get-empty') as empty_gets,
        max(case when request <> 'channel.close' then request_ts_ns end) as last_ts_ns
    from rpcs where from_client group by connection_id, channel, channel_epoch
)
select n.client, n.server, n.vhost, k.connection_id, k.channel, k.channel_epoch,
    m.opened_ts_ns, m.opened_capture, m.opened_packet,
    c.ts_ns as closed_ts_ns, c.packet as closed_packet,
    case when c.from_client then 'client' when c.from_client is not null then 'server' else cast(null as string) end
        as closed_by,
    c.reply_code, c.reply_text,
    coalesce(m.selects, 0) > 0 as confirm_mode, coalesce(m.transactions, 0) > 0 as transactional,
    coalesce(s.publishes, 0) as publishes, coalesce(s.bytes, 0) as published_bytes,
    coalesce(s.replies, 0) as replies, coalesce(s.calls, 0) as calls,
    coalesce(g.deliveries, 0) as deliveries, coalesce(g.gets, 0) as gets, coalesce(a.empty_gets, 0) as empty_gets,
    coalesce(m.declares, 0) as declares, coalesce(m.binds, 0) as binds, coalesce(m.consumes, 0) as consumers,
    coalesce(a.requests, 0) as requests,
    case when q.prefetch_count is not null then q.prefetch_count
        when m.opened_ts_ns is not null then 0 else cast(null as int) end as prefetch,
    k.first_ts_ns, s.first_capture as publish_capture, s.first_packet as publish_packet,
    greatest(k.first_ts_ns, coalesce(s.last_ts_ns, k.first_ts_ns), coalesce(g.last_ts_ns, k.first_ts_ns),
        coalesce(a.last_ts_ns, k.first_ts_ns)) as last_ts_ns
from epochs k
left join endpoints n on k.connection_id = n.connection_id
left join methods m on k.connection_id = m.connection_id and k.channel = m.channel
    and k.channel_epoch = m.channel_epoch
left join operations c on k.connection_id = c.connection_id and m.close_frame_no = c.frame_no
left join limits q on k.connection_id = q.connection_id and k.channel = q.channel
    and k.channel_epoch = q.channel_epoch and q.latest = 1
left join sent s on k.connection_id = s.connection_id and k.channel = s.channel
    and k.channel_epoch = s.channel_epoch
left join got g on k.connection_id = g.connection_id and k.channel = g.channel and k.channel_epoch = g.channel_epoch
left join asked a on k.connection_id = a.connection_id and k.channel = a.channel
    and k.channel_epoch = a.channel_epoch
