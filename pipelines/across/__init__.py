"""Walks over several connections: the table `transits`, deliveries and the publishes that they are of."""
