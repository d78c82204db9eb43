-- One row per broker: until when there is something of it. A connection on which nothing comes any more ends no sooner.
select server, max(last_ts_ns) as last_ts_ns from endpoints where server is not null group by server
