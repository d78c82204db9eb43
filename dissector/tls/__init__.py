"""TLS: records of a connection, what its handshake shows, and, with the secrets of a key log, what is inside."""
