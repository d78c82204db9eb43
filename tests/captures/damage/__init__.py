"""What becomes of captures that are damaged."""
