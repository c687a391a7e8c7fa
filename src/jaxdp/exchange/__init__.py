"""How workers of different speed train together, come and go: who computes what, and what is done
with what they computed.
"""
