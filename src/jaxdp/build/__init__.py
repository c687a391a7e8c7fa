"""Builds a run: fills in its settings, and makes its parts."""
