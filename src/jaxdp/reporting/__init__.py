"""Presents runs, predictions, sweeps and benchmarks as text, tables, plots and one page."""
