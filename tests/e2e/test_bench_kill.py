"""A run under kill -9: started again, it ends in the figures of one that was left alone."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests import processes

RUN = """
tables = ["recap_table2"]
max_inputs = 6
max_new_tokens = 32
warm_up = 1
stock = false
[[methods]]
label = "RECAP"
drafter = "recap"
"""


def command(run: Path, out: Path) -> list[str]:
    return [sys.executable, "-m", "eyespan", "bench", "run", str(run), "--out", str(out)]


def untimed(folder: Path) -> list[Any]:
    """All that the machine's speed does not decide."""
    lines = [json.loads(raw) for raw in (folder / "records.jsonl").open()]
    timed = ("seconds", "plain_seconds", "stage_ms", "stage_cpu_ms")
    return [{key: value for key, value in line.items() if key not in timed} for line in lines]


def finished(folder: Path) -> int:
    file = folder / "records.jsonl"
    return file.read_bytes().count(b'"type":"input"') if file.exists() else 0


@pytest.mark.slow
def test_killed_twice(tmp_path: Path) -> None:
    run = tmp_path / "run.toml"
    run.write_text(RUN)
    processes.finished(command(run, tmp_path / "whole"))
    for inputs in (2, 4):
        going = subprocess.Popen(
            command(run, tmp_path / "cut"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while finished(tmp_path / "cut") < inputs:
            assert going.poll() is None, "it ended before it was killed"
            time.sleep(0.02)
        going.send_signal(signal.SIGKILL)
        going.wait()
        assert not (tmp_path / "cut" / "tables.json").exists()
    processes.finished(command(run, tmp_path / "cut"))
    assert untimed(tmp_path / "cut") == untimed(tmp_path / "whole")
