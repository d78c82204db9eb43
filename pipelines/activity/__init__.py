"""Walks that note what connections did, for the relations: who they are, what they set up, how much they publish."""
