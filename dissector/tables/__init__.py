"""Rows of all tables, and the part files they are written to."""
