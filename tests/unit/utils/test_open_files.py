"""Programs that hold many connections raise their limit of open files."""

import subprocess
import sys

import pytest

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
