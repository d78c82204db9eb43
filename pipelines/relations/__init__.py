"""Relations: tables that follow from other tables by grouping and joining, one SQL text each (`NAME.sql`).

They read statistics, never frames or messages. The same text runs on DuckDB in this process and on Spark SQL, in a
narrow dialect (`dialect`). `routes` and what a routing key leads to are plain Python, because patterns are matched.
"""
