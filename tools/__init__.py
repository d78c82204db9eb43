"""What builds the package, its documentation and releases."""
