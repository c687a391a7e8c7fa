"""Provides operations in the forms that a platform computes fast: the same mathematics as the plain form, other programs."""
