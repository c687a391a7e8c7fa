"""Trains with combinations of settings, and compares the runs."""
