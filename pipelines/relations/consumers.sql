-- One row per consumer: what it was given, how it settled, and how much of its time its prefetch was full.
with tags as (
    -- the tag is the server's where the client gives none
    select o.connection_id, o.channel, o.channel_epoch, coalesce(a.consumer_tag, o.consumer_tag) as consumer_tag,
        o.queue, o.no_ack, o.frame_no, o.ts_ns, o.packet, o.capture,
        row_number() over (partition by o.connection_id, o.channel, o.channel_epoch,
            coalesce(a.consumer_tag, o.consumer_tag) order by o.frame_no desc nulls last) as latest
    from operations o
    left join rpcs r on o.connection_id = r.connection_id and o.frame_no = r.request_frame_no
    left join operations a on r.connection_id = a.connection_id and r.response_frame_no = a.frame_no
    where o.method = 'basic.consume' and coalesce(r.outcome, '') <> 'error'
),
given as (
    -- what is open of one whose consume was not seen is unknown
    select connection_id, channel, channel_epoch, consumer_tag, min(queue) as queue,
        case when count(exchange) = count(*) and max(exchange) = '' and min(routing_key) = max(routing_key)
            and min(routing_key) not like 'amq.rabbitmq.reply-to%' then min(routing_key) end as queue_by_key,
        count(*) as deliveries,
        count(*) filter (where outcome = 'ack') as acks,
        count(*) filter (where outcome = 'nack' or outcome = 'reject') as rejected,
        count(*) filter (where (outcome = 'nack' or outcome = 'reject') and requeue) as requeued,
        count(*) filter (where outcome = 'auto') as automatic,
        count(*) filter (where outcome = 'none' or outcome = 'unknown') as unsettled,
        count(*) filter (where (outcome = 'none' or outcome = 'unknown') and (ended_by = 'gap' or ended_by = 'evicted'))
            as unknown,
        -- it has to settle if its consume says so, or if it does
        max(case when outcome = 'unknown' then 1 else 0 end) = 0
            or max(case when outcome = 'ack' or outcome = 'nack' or outcome = 'reject' then 1 else 0 end) = 1 as must_settle,
        count(*) filter (where redelivered) as redelivered,
        min(case when outcome = 'none' or outcome = 'unknown' then deliver_ts_ns end) as oldest_open_ts_ns,
        max(latency_ns) as settle_max_ns,
        cast(sum(body_size) as bigint) as bytes,
        min(deliver_ts_ns) as first_ts_ns, max(deliver_ts_ns) as last_ts_ns,
        min(deliver_frame_no) as first_frame_no, max(deliver_frame_no) as last_frame_no,
        min(case when outcome = 'none' or outcome = 'unknown' then ended_by end) as ended_by
    from settlements where kind = 'deliver' and consumer_tag is not null and not coalesce(incomplete, false)
    group by connection_id, channel, channel_epoch, consumer_tag
),
keys as (
    select connection_id, channel, channel_epoch, consumer_tag from given
    union all
    select connection_id, channel, channel_epoch, consumer_tag from tags where latest = 1
),
consumers as (
    select connection_id, channel, channel_epoch, consumer_tag from keys where consumer_tag is not null
    group by connection_id, channel, channel_epoch, consumer_tag
),
limits as (
    -- without global, basic.qos is for consumers begun later; with it, for the channel
    select t.connection_id, t.channel, t.channel_epoch, t.consumer_tag, q.prefetch_count,
        coalesce(q.is_global, false) as is_shared,
        row_number() over (partition by t.connection_id, t.channel, t.channel_epoch, t.consumer_tag
            order by q.frame_no desc nulls last) as latest
    from tags t
    join operations q on t.connection_id = q.connection_id and t.channel = q.channel
        and t.channel_epoch = q.channel_epoch and q.method = 'basic.qos'
    where t.latest = 1 and (q.frame_no < t.frame_no or coalesce(q.is_global, false))
),
waits as (
    select connection_id, channel, channel_epoch, consumer_tag, cast(sum(duration_ns) as bigint) as full_ns,
        count(*) as waits, max(duration_ns) as longest_ns
    from (
        select connection_id, channel, channel_epoch, consumer_tag, duration_ns
        from flow_control where cause = 'prefetch' and consumer_tag is not null
        union all
        -- a limit of the channel holds all of its consumers back
        select f.connection_id, f.channel, f.channel_epoch, k.consumer_tag, f.duration_ns
        from flow_control f
        join consumers k on f.connection_id = k.connection_id and f.channel = k.channel
            and f.channel_epoch = k.channel_epoch
        where f.cause = 'prefetch' and f.consumer_tag is null
    ) w group by connection_id, channel, channel_epoch, consumer_tag
),
cancels as (
    -- its answer says so as well, where the request is missing
    select connection_id, channel, channel_epoch, consumer_tag, min(ts_ns) as ts_ns, min_by(packet, frame_no) as packet,
        min_by(capture, frame_no) as capture,
        min_by(case when from_client = (method = 'basic.cancel') then 'client' else 'server' end, frame_no) as cancelled_by
    from operations where method = 'basic.cancel' or method = 'basic.cancel-ok'
    group by connection_id, channel, channel_epoch, consumer_tag
),
spans as (
    -- a consumer ends when it is cancelled, or else with its channel or its connection
    select k.connection_id, k.channel, k.channel_epoch, k.consumer_tag, h.opened_ts_ns,
        coalesce(x.ts_ns, h.closed_ts_ns, n.closed_ts_ns) as ended_ts_ns, x.ts_ns as cancelled_ts_ns,
        x.packet as cancelled_packet, x.capture as cancelled_capture, x.cancelled_by
    from consumers k
    left join endpoints n on k.connection_id = n.connection_id
    left join channels h on k.connection_id = h.connection_id and k.channel = h.channel
        and k.channel_epoch = h.channel_epoch
    left join cancels x on k.connection_id = x.connection_id and k.channel = x.channel
        and k.channel_epoch = x.channel_epoch and k.consumer_tag = x.consumer_tag
)
select n.client, n.server, n.vhost, k.connection_id, k.channel, k.channel_epoch, k.consumer_tag,
    -- tags that brokers and clients make up: amq.ctag-..., ctag1.9f3..., of Bunny and of Kombu
    case when k.consumer_tag like '%ctag%' or k.consumer_tag like 'bunny-%-%' or k.consumer_tag like 'None_'
        or k.consumer_tag like 'None__' then coalesce(n.client, k.consumer_tag) else k.consumer_tag end as called,
    coalesce(g.queue, t.queue, g.queue_by_key) as queue,
    g.queue is null and t.queue is null and g.queue_by_key is not null as is_by_key,
    case when l.prefetch_count is not null then l.prefetch_count
        when t.frame_no is not null and x.opened_ts_ns is not null then 0 else cast(null as int) end as prefetch,
    coalesce(l.is_shared, false) as is_shared,
    t.no_ack, t.ts_ns as begun_ts_ns, t.capture as begun_capture, t.packet as begun_packet,
    coalesce(g.deliveries, 0) as deliveries,
    coalesce(g.acks, 0) + coalesce(g.rejected, 0) as settlements,
    coalesce(g.acks, 0) as acks, coalesce(g.rejected, 0) as rejected, coalesce(g.requeued, 0) as requeued,
    coalesce(g.redelivered, 0) as redeliveries, coalesce(g.automatic, 0) as automatic,
    case when g.must_settle then g.unsettled else 0 end as unsettled, case when g.must_settle then g.unknown else 0 end as unknown,
    case when g.must_settle then g.oldest_open_ts_ns end as oldest_open_ts_ns, coalesce(g.bytes, 0) as bytes,
    coalesce(w.waits, 0) as waits, coalesce(w.full_ns, 0) as full_ns, w.longest_ns as longest_wait_ns,
    cast(coalesce(w.full_ns, 0) as double)
        / nullif(cast(coalesce(x.ended_ts_ns, n.last_ts_ns) - coalesce(t.ts_ns, g.first_ts_ns) as double), 0) as full_share,
    p.p50_ns as settle_p50_ns, g.settle_max_ns,
    g.first_ts_ns, g.last_ts_ns,
    f.deliver_capture as first_capture, f.deliver_packet as first_packet,
    z.deliver_capture as last_capture, z.deliver_packet as last_packet,
    x.cancelled_ts_ns, x.cancelled_capture, x.cancelled_packet, x.cancelled_by, x.ended_ts_ns,
    case when g.must_settle then g.ended_by end as ended_by
from consumers k
left join endpoints n on k.connection_id = n.connection_id
left join tags t on k.connection_id = t.connection_id and k.channel = t.channel
    and k.channel_epoch = t.channel_epoch and k.consumer_tag = t.consumer_tag and t.latest = 1
left join given g on k.connection_id = g.connection_id and k.channel = g.channel
    and k.channel_epoch = g.channel_epoch and k.consumer_tag = g.consumer_tag
left join limits l on k.connection_id = l.connection_id and k.channel = l.channel
    and k.channel_epoch = l.channel_epoch and k.consumer_tag = l.consumer_tag and l.latest = 1
left join waits w on k.connection_id = w.connection_id and k.channel = w.channel
    and k.channel_epoch = w.channel_epoch and k.consumer_tag = w.consumer_tag
left join spans x on k.connection_id = x.connection_id and k.channel = x.channel
    and k.channel_epoch = x.channel_epoch and k.consumer_tag = x.consumer_tag
left join latency_summary p on k.connection_id = p.connection_id and k.channel = p.channel
    and k.channel_epoch = p.channel_epoch and k.consumer_tag = p.consumer_tag
    and p.metric = 'settlement' and p.grouping = 'consumer_tag'
left join settlements f on k.connection_id = f.connection_id and g.first_frame_no = f.deliver_frame_no
left join settlements z on k.connection_id = z.connection_id and g.last_frame_no = z.deliver_frame_no
