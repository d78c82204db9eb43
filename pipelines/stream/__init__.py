"""Statistics of the stream protocol: publishing ids and their confirms, credit, and deliveries."""
