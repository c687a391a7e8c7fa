"""Workers that differ in speed, and come and go: the strategies `exact` and `async`, on Ray."""
