"""Provides the strategy `exact` on Ray workers that differ in speed, and come and go."""
