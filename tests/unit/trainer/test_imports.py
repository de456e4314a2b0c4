"""The driver's side of the trainer starts without torch: it is imported in the ranks only."""

from __future__ import annotations

import subprocess
import sys


def test_the_group_imports_no_torch() -> None:
    code = "import sys, rstar2_train.trainer.trainer_group\n"
    code += "print(sorted({'torch', 'transformers', 'ray'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
