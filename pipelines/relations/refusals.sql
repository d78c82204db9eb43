-- One row per client, exchange, routing key and queue (as far as it is known) with publishes that the broker refused.
-- None without rows of confirms.
with marked as (
    select c.connection_id, n.client, n.server, coalesce(n.vhost, '') as vhost, c.exchange, c.routing_key,
        -- what ends a session of AMQP 0-10 is an error of its own
        case when c.protocol = 'amqp-0-10' and c.reply_code is not null then 'error' else c.outcome end as outcome,
        c.ended_by, c.confirm_ts_ns, c.confirm_packet, c.confirm_capture, c.confirm_frame_no, c.publish_packet,
        c.publish_capture, c.publish_ts_ns,
        case when c.outcome = 'nack' then lpad(cast(c.confirm_ts_ns as string), 20, '0') || lpad(cast(c.confirm_packet as string), 12, '0') || c.confirm_capture end as place
    from confirms c join endpoints n on c.connection_id = n.connection_id
    where c.exchange is not null and not coalesce(c.incomplete, false)
),
sums as (
    select client, server, vhost, exchange, routing_key, count(*) as publishes,
        count(*) filter (where outcome = 'nack') as refused,
        count(*) filter (where outcome = 'none' and (ended_by = 'gap' or ended_by = 'evicted')) as uncertain,
        min(case when outcome = 'nack' then connection_id end) as connection_id,
        min(case when outcome = 'nack' then confirm_ts_ns end) as first_ts_ns,
        max(case when outcome = 'nack' then confirm_ts_ns end) as last_ts_ns,
        min_by(confirm_packet, case when outcome = 'nack' then place end) as first_packet,
        max_by(confirm_packet, case when outcome = 'nack' then place end) as last_packet,
        min_by(confirm_capture, case when outcome = 'nack' then place end) as first_capture,
        max_by(confirm_capture, case when outcome = 'nack' then place end) as last_capture
    from marked group by client, server, vhost, exchange, routing_key
),
takers as (
    select t.server, t.vhost, t.exchange, t.routing_key, min(t.queue) as queue, count(*) as queues
    from routed t
    join queues q on t.server = q.server and t.vhost = q.vhost and t.queue = q.queue
    where t.queues = 1 or q.overflow like 'reject-publish%'
    group by t.server, t.vhost, t.exchange, t.routing_key
)
select s.client, s.server, s.vhost, s.exchange, s.routing_key, case when k.queues = 1 then k.queue end as queue,
    case when k.queues = 1 then q.max_length end as max_length,
    case when k.queues = 1 then q.max_length_bytes end as max_length_bytes, case when k.queues = 1 then q.overflow end as overflow,
    case when k.queues = 1 then q.declared_packet end as declared_packet, s.publishes, s.refused, s.uncertain,
    s.connection_id, s.first_ts_ns, s.last_ts_ns, s.first_packet, s.last_packet, s.first_capture, s.last_capture
from sums s
left join takers k on s.server = k.server and s.vhost = k.vhost and s.exchange = k.exchange
    and s.routing_key = k.routing_key
left join queues q on s.server = q.server and s.vhost = q.vhost and k.queue = q.queue
where s.refused > 0
