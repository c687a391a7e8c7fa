"""Provides the measurements of gpu_check.py, and the processes in which they run."""
