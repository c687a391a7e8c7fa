"""The folder of a run: what is in it, how its files are read and written, and who may write."""
