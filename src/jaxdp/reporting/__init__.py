"""Presents runs, predictions, sweeps and benchmarks to people: as text, tables, plots and one page."""
