-- One row per client and queue that was exclusive to a connection which had ended: messages that were published to it since.
-- None without rows of operations.
with left_alone as (
    -- who cancels its consumer first has given up before
    select queue from consumers where cancelled_by = 'client' and queue is not null group by queue
),
unanswered_of as (
    select n.server, n.client as answerer, min(u.client) as client, count(distinct u.client) as clients,
        cast(sum(u.requests) as bigint) as requests, min(u.first_ts_ns) as first_ts_ns, max(u.last_ts_ns) as last_ts_ns
    from unanswered u
    join (
        -- who gets what had the same key
        select n.client, n.server, s.exchange, s.routing_key
        from settlements s join endpoints n on s.connection_id = n.connection_id
        where s.exchange is not null and s.routing_key is not null
        group by n.client, n.server, s.exchange, s.routing_key
    ) n on u.server = n.server and u.exchange = n.exchange and u.routing_key = n.routing_key
    group by n.server, n.client
),
sent as (
    select n.client, n.server, coalesce(n.vhost, '') as vhost, x.queue, x.owner, x.ended_ts_ns as owner_ended_ts_ns,
        p.connection_id, p.count, p.first_ts_ns, p.last_ts_ns, p.first_packet, p.last_packet, p.first_capture,
        p.last_capture,
        lpad(cast(p.first_ts_ns as string), 20, '0') || lpad(cast(p.first_packet as string), 12, '0') || p.first_capture
            as begin,
        lpad(cast(p.last_ts_ns as string), 20, '0') || lpad(cast(p.last_packet as string), 12, '0') || p.last_capture
            as until
    from published p
    join endpoints n on p.connection_id = n.connection_id
    join exclusives x on p.routing_key = x.queue and p.first_ts_ns > x.ended_ts_ns
    left join left_alone a on x.queue = a.queue
    where p.exchange = '' and p.mandatories = 0 and a.queue is null
)
select s.client, s.server, s.vhost, s.queue, s.owner, s.owner_ended_ts_ns, cast(sum(s.count) as bigint) as messages,
    max(u.requests) as requests, max(case when u.clients = 1 then u.client end) as caller,
    min(s.connection_id) as connection_id, min(s.first_ts_ns) as first_ts_ns, max(s.last_ts_ns) as last_ts_ns,
    min_by(s.first_packet, s.begin) as first_packet, max_by(s.last_packet, s.until) as last_packet,
    min_by(s.first_capture, s.begin) as first_capture, max_by(s.last_capture, s.until) as last_capture
from sent s
left join unanswered_of u on s.server = u.server and s.client = u.answerer and u.first_ts_ns <= s.last_ts_ns
    and u.last_ts_ns >= s.first_ts_ns
group by s.client, s.server, s.vhost, s.queue, s.owner, s.owner_ended_ts_ns
