"""Reads and writes the files of a run folder, and locks the folder."""
