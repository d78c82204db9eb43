-- One row per channel on which a client made requests that were answered: how many, and how long it waited for them.
-- None without rows of rpcs.
select n.client, n.server, r.connection_id, r.channel, r.channel_epoch, count(*) as requests,
    count(*) filter (where r.request = 'tx.commit') as commits,
    count(*) filter (where r.request = 'queue.declare') as declares,
    count(*) filter (where r.request = 'basic.get') as gets,
    cast(sum(r.latency_ns) as bigint) as waited_ns,
    min(r.request_ts_ns) as first_ts_ns, max(r.response_ts_ns) as last_ts_ns,
    min_by(r.request_packet, r.request_frame_no) as first_packet,
    max_by(r.response_packet, r.request_frame_no) as last_packet,
    min_by(r.request_capture, r.request_frame_no) as first_capture,
    max_by(r.response_capture, r.request_frame_no) as last_capture
from rpcs r
join endpoints n on r.connection_id = n.connection_id
where r.from_client and r.channel > 0 and r.latency_ns is not null
group by n.client, n.server, r.connection_id, r.channel, r.channel_epoch
