"""Starts and restarts the processes of a run, on this machine, with Slurm or on Ray."""
