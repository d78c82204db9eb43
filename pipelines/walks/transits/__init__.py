"""The table `transits`: deliveries and the publishes that they are of, across connections."""
