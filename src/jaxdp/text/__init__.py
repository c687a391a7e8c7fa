"""Parses untrusted text, and formats text for people."""
