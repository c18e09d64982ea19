"""Measuring. A run file (`settings.py`) names methods and sets of inputs (`datasets/`); the runner
lets every method take turns with plain decoding on every input and writes each answer down
(`records.py`); metrics are pure functions over these records, and builders (`build/`) make them
into tables and figures (`tables.py`). `execute.py` ties it together.

Every number here comes from one process, one model in memory, and runs that took turns; answers are
compared before times are looked at.
"""
