"""The orchestrator's side of the trainer needs no torch; only the ranks import it."""

from __future__ import annotations

import subprocess
import sys


def test_trainer_group_imports_no_torch() -> None:
    """The orchestrator imports TrainerGroup without torch, transformers and Ray, which need seconds to load."""
    code = "import sys, rstar2_train.trainer.trainer_group\n"
    code += "print(sorted({'torch', 'transformers', 'ray'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
