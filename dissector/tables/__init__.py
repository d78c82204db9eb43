"""Rows of all tables, and the part files that hold them."""
