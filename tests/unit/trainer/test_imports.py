"""The orchestrator's side of the trainer needs no torch; only the ranks import it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def test_trainer_group_imports_no_torch() -> None:
    """The orchestrator imports TrainerGroup without torch, transformers and Ray, which need seconds to load."""
    code = "import sys, rstar2_train.trainer.trainer_group\n"
    code += "print(sorted({'torch', 'transformers', 'ray'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_gpu_kit_needs_only_torch_and_transformers(tmp_path: Path) -> None:
    """The kit runs where nothing is installed: the small package under the ranks needs neither Ray nor pydantic."""
    code = (
        "import sys\n"
        "for name in ('ray', 'vllm', 'pydantic', 'psutil', 'pyarrow', 'aiohttp', 'mlflow', 'kopf'):\n"
        "    sys.modules[name] = None\n"
        "sys.argv = ['gpu_kit_checks', 'logits', '--dry']\n"
        "from bench import gpu_kit, gpu_kit_checks\n"
        "gpu_kit_checks.main()\n"
    )
    output = tmp_path / "result.json"
    environment = os.environ | {"GPU_KIT_OUTPUT": str(output), "GLOO_SOCKET_IFNAME": "lo"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, cwd=Path(__file__).parents[3])
    assert json.loads(output.read_text())["verdict"] == "pass"
