"""Presents runs, predictions and benchmarks as text, tables, plots and one page."""
