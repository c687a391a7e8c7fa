"""Trains: begins or resumes a run, takes its steps, and summarizes it."""
