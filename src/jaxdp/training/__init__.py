"""Trains: puts a run together from its settings, takes it from step to step, and sums it up."""
