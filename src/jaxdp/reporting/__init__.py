"""Presents runs and predictions as text, tables and plots."""
