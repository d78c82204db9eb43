-- One row per connection whose client closed its TCP window: how often it did, and for how long it did not read.
-- None without rows of flow_control.
select n.client, n.server, f.connection_id, count(*) as times,
    -- nothing comes on the connection any more, and it is not closed: to the end of the capture
    cast(sum(case when f.end_ts_ns is null and f.duration_ns is not null and n.closed_ts_ns is null
        and coalesce(n.ending, 'open') = 'open' and e.last_ts_ns > f.start_ts_ns then e.last_ts_ns - f.start_ts_ns
        else f.duration_ns end) as bigint) as total_ns,
    min(f.start_ts_ns) as first_ts_ns, max(f.end_ts_ns) as last_ts_ns,
    min_by(f.start_packet, f.start_ts_ns) as first_packet, max_by(f.end_packet, f.start_ts_ns) as last_packet,
    min_by(f.start_capture, f.start_ts_ns) as first_capture, max_by(f.end_capture, f.start_ts_ns) as last_capture
from flow_control f
join endpoints n on f.connection_id = n.connection_id
join servers e on n.server = e.server
where f.cause = 'zero-window' and f.side = 'client'
group by n.client, n.server, f.connection_id
