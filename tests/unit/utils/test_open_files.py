"""Programs that hold many connections raise their limit of open files."""

import subprocess
import sys
from pathlib import Path

import pytest

from scripts.setup import ROOT

PROGRAM = """
import contextlib, importlib, resource, sys
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
with contextlib.suppress(OSError):
    importlib.import_module(sys.argv[1]).main(sys.argv[2:])
print(resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard))
"""


@pytest.mark.parametrize(
    "command",
    [
        "rstar2_train.orchestrator.__main__ --state /nowhere --stage s --attempt 1",
        "rstar2_train.judge.__main__ worker --redis redis://nowhere --executors-at nowhere:1",
        "rstar2_train.cli.main validate /nowhere",
    ],
)
def test_main_raises_open_file_limit_first(command: str) -> None:
    """The arguments of each program are invalid, so that it stops right after its start."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, *command.split()], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "True", done.stderr


@pytest.mark.parametrize("command", ["run MANIFEST", "judge serve"])
def test_too_few_open_files_are_refused_before_the_start(command: str, tmp_path: Path) -> None:
    """Redis or a sandbox would fail minutes later, with an error that names another cause."""
    code = "import sys; from rstar2_train.cli.main import main; sys.exit(main())"
    arguments = command.replace("MANIFEST", str(ROOT / "examples" / "smoke.yaml")).split()
    limited = ["sh", "-c", 'ulimit -n 64 && exec "$@"', "sh", sys.executable, "-c", code, *arguments]
    done = subprocess.run(limited, capture_output=True, text=True, check=False, cwd=tmp_path)
    remedy = "raise the hard limit of open files to 4,096 or more"
    assert done.returncode == 1 and f"only 64 files may be open at the same time: {remedy}" in done.stderr
    assert "Traceback" not in done.stderr and "Preparing" not in done.stdout
