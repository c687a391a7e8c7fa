"""Prepares, connects and watches the processes of a run and their devices."""
