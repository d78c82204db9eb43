"""The protocols, a folder each, and what they share: detection, framing, resynchronisation."""
