"""A temporary folder that exists as long as its process."""

import shutil
import subprocess
import sys
from uuid import uuid4

from rstar2_train.utils.scratch_dir import scratch_dir

HOLDER = """\
import os, sys
from rstar2_train.utils.scratch_dir import scratch_dir
folder, lock = scratch_dir(sys.argv[1])
os.set_inheritable(lock.fileno(), True)
print(folder, flush=True)
os.execvp("sleep", ["sleep", "60"])
"""


def test_scratch_dir_deletes_folders_of_dead_processes() -> None:
    """The folder of a running process stays, that of a killed process is deleted by the next call."""
    prefix = f"rstar2-test-{uuid4().hex}-"
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, prefix], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    held = holder.stdout.readline().strip()
    first, lock = scratch_dir(prefix)
    try:
        assert sorted(map(str, first.parent.glob(f"{prefix}*"))) == sorted([held, str(first)])
        holder.kill()
        holder.communicate()
        second, second_lock = scratch_dir(prefix)
        assert set(first.parent.glob(f"{prefix}*")) == {first, second}
        second_lock.close()
    finally:
        lock.close()
        for folder in first.parent.glob(f"{prefix}*"):
            shutil.rmtree(folder)
