"""`bench.train` runs the step on any machine: with torchrun, and without the other packages of the product."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
OTHERS = ("ray", "pydantic", "aiohttp", "kopf", "mlflow", "vllm", "redis", "pyarrow")
"""Packages of the product that the step must not need."""
PROGRAM = f"""
import runpy, sys
sys.modules.update(dict.fromkeys({OTHERS!r}))  # an import of one of them fails
runpy.run_module("bench.train", run_name="__main__", alter_sys=True)
"""


def test_bench_train_runs_with_torchrun_alone(tmp_path: Path) -> None:
    """Two ranks print tokens per second and the layout, with torch, transformers and safetensors."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(program)]
    done = subprocess.run(
        [*argv, "--shape", "cpu", "--updates", "1", "--sequences", "2"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    figures = json.loads(done.stdout)
    assert figures["tokens"] == 2 * 2 * 1024  # two ranks, two micro-batches each
    assert figures["tokens_per_s"] > 0
    assert figures["layout"]["ranks"] == 2
