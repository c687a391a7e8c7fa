"""Saves the states of a run as checkpoints, verifies these, and restores from them."""
