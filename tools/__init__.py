"""What builds the package."""
