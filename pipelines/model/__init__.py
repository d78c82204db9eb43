"""What all statistics share, whatever the protocol."""
