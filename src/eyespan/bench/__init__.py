"""Measuring: the paired clock, comparison with the plain answer, and the tables of the demo's set.

Every number here comes from one process, one model in memory, and runs that took turns; answers are
compared before times are looked at.
"""
