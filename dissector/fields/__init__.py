"""Fields of records: bytes to typed Arrow columns, as the specification says; secrets hidden."""
