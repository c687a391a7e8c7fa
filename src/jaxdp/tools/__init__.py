"""Does the work of the commands that survey devices, plan memory, measure, compare, sweep, and list
or import weights.
"""
