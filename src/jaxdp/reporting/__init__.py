"""Presents runs, predictions and benchmarks as text, tables and plots."""
