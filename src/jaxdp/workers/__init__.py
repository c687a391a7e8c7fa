"""Provides the strategies `exact` and `async`, on Ray workers that differ in speed, and come and
go.
"""
