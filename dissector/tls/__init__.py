"""TLS: the records of a connection, what its handshake shows and, with a key log, the decrypted content."""
