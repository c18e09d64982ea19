"""`python -m eyespan`."""

from eyespan.cli import main

main()
