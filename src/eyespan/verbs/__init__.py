"""The verbs of the command line, one file each; `cli.py` lists them.

None imports torch at the top, so that `--help` and refused options take no time: what needs it is
imported inside the function that needs it.
"""
