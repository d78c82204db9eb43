"""What is Spark's: its session, tasks that run the walks, DataFrames, and captures as a data source."""
