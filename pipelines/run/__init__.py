"""What runs the walks in this process: over a folder of tables, captures, or a directory that is followed."""
