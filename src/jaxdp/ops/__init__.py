"""Provides operations in the forms that one platform computes fast: the same mathematics as the
plain form in another program.
"""
