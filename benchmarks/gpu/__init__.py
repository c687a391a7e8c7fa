"""What gpu_check.py measures, and the processes in which it measures."""
