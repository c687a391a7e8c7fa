"""Parses text that others wrote, and makes text for people."""
