"""Starts the processes of a run, here, with Slurm or on Ray, and starts them again."""
