"""Applies trained models to new images, and reads and writes their weights."""
