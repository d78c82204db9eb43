-- One row per broker all of whose connections were captured from their beginning on, both directions, without a gap.
select server, max(last_ts_ns) as last_ts_ns
from endpoints
where server is not null
group by server
having max(case when coalesce(handshake_outcome, '') = 'begun-before' or unreadable is not null
    or coalesce(lost_bytes, 0) + coalesce(skipped_bytes, 0) > 0 then 1 else 0 end) = 0
