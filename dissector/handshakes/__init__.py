"""How far each connection came, why no further, and how that is reported."""
