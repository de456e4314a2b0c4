"""The shell blocks of the pages for a first visit: each is executed here, or states in its source why it is not."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rstar2_train.rollout import trajectory_store
from rstar2_train.rollout.trajectory import Trajectory
from scripts.docs.repository import ROOT
from tests.support.engine_proxy import write_job
from tests.support.simulated_cluster import manifest
from tests.support.token_arrays import token_array

PAGES = (
    "README.md",
    *(f"docs/{name}.md" for name in ("quickstart", "tutorial", "gpu", "environments", "debugging-rewards")),
)
PROGRAMS = (
    *("rstar2", "make", "git", "source", "python3", "pip", "kubectl", "helm", "docker", "hf", "uvicorn", "curl", "sed"),
    "REGISTRY=",
)
"""First words of a shell block; other blocks show files and outputs."""
BLOCK = re.compile(
    r"(?:^ *<!-- (?P<mark>run|not run: [^\n]+) -->\n)?^ *```(?P<language>\w*)\n(?P<code>.*?)^ *```$",
    re.DOTALL | re.MULTILINE,
)
BLOCKS = [
    (page, match["mark"], match["code"])
    for page in PAGES
    for match in BLOCK.finditer((ROOT / page).read_text("utf-8"))
    if match["language"] in ("", "bash") and match["code"].lstrip().startswith(PROGRAMS)
]
FILES: dict[str, dict[str, Any]] = {
    "mine.jsonl": {"id": "p-1", "problem": "A train covers 120 km in 90 minutes. Its speed in km/h?", "answer": "80"},
    "held-out.jsonl": {"id": "h-1", "problem": "How many primes are smaller than one hundred?", "answer": "25"},
    "ToolACE/data.jsonl": {
        "system": '[{"name": "weather", "description": "", "parameters": {"type": "dict", "properties": {}}}]',
        "conversations": [
            {"from": "user", "value": "Rain?"},
            {"from": "assistant", "value": "[weather()]"},
            {"from": "tool", "value": '[{"name": "weather", "results": {"rain": false}}]'},
            {"from": "assistant", "value": "No."},
        ],
    },
}
"""Files of the reader that the blocks name, with their row."""


def test_each_shell_block_has_a_mark() -> None:
    """A comment in front of it: `run`, or `not run:` with the reason."""
    assert len(BLOCKS) > 15
    assert [(page, code) for page, mark, code in BLOCKS if mark is None] == []


@pytest.mark.parametrize(("page", "code"), [(page, code) for page, mark, code in BLOCKS if mark == "run"])
def test_shell_block_runs(page: str, code: str, tmp_path: Path) -> None:
    """In a folder with the reader's files, examples and a trained job, and the environment of the clone."""
    for name, row in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(row) + "\n")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    write_trained_job(tmp_path / ".rstar2" / "tiny")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "activate").write_text("")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", code],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, f"{page}: {done.stdout}{done.stderr}"
    assert done.stdout.strip()


def write_trained_job(folder: Path) -> None:
    """Write the state of a job with the stored rollouts of a problem."""
    state = write_job(manifest("g"), folder)
    rows = [
        Trajectory("p-1", sample, token_array([1]), gold="1/2", answer="0.5", verdict="correct", reward=1.0)
        for sample in range(4)
    ]
    trajectories = state.stage(state.job().spec.stages[0].name).trajectories
    trajectory_store.write(trajectory_store.step_path(trajectories, 1), rows)
