"""Slow, obvious Python twins of the compiled core: one file a structure, plain lists and dicts.

Their arithmetic follows the core's order of operations in doubles, so that results are equal bit
for bit; nothing here is shared with `src/`.
"""
