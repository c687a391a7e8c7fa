"""Registries, and the user's own files and modules that register in them."""
