"""Measurements of the library's own costs; each module runs with `python -m benchmarks.<name>`."""
