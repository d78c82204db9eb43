-- One row per connection, side and segment that was sent again and again up to the connection's end: nothing got through.
-- None without rows of tcp_delays.
select d.connection_id, d.from_client, count(*) as times, max(d.duration_ns) as duration_ns,
    min(d.start_ts_ns) as since_ts_ns, max(d.end_ts_ns) as until_ts_ns, d.of_packet as first_packet,
    max_by(d.packet, lpad(cast(d.end_ts_ns as string), 20, '0') || lpad(cast(d.packet as string), 12, '0') || d.capture) as last_packet,
    d.of_capture as first_capture,
    max_by(d.capture, lpad(cast(d.end_ts_ns as string), 20, '0') || lpad(cast(d.packet as string), 12, '0') || d.capture) as last_capture
from tcp_delays d join endpoints n on d.connection_id = n.connection_id
where d.kind = 'retransmission' and d.bytes > 0
group by d.connection_id, d.from_client, d.of_capture, d.of_packet, n.last_ts_ns
having count(*) >= 4 and max(d.duration_ns) >= 3000000000 and max(d.end_ts_ns) = n.last_ts_ns
