-- One row per broker, where no connection of the whole capture is unreadable or lacks bytes: a consumer may be connected to
-- another port, or another node.
select n.server, max(n.last_ts_ns) as last_ts_ns
from endpoints n
join (
    select 0 as lost, max(case when unreadable is not null or coalesce(lost_bytes, 0) + coalesce(skipped_bytes, 0) > 0
        then 1 else 0 end) as found
    from endpoints
) a on a.found = a.lost
where n.server is not null
group by n.server
