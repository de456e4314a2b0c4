"""A folder that lives as long as the process that took it."""

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


def test_that_of_a_killed_process_goes_and_that_of_a_living_one_stays() -> None:
    prefix = f"rstar2-test-{uuid4().hex}-"
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, prefix], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    others = holder.stdout.readline().strip()
    first, lock = scratch_dir(prefix)
    try:
        assert sorted(str(one) for one in first.parent.glob(f"{prefix}*")) == sorted([others, str(first)])
        holder.kill()
        holder.communicate()
        second, other_lock = scratch_dir(prefix)
        assert set(first.parent.glob(f"{prefix}*")) == {first, second}
        other_lock.close()
    finally:
        lock.close()
        for left in first.parent.glob(f"{prefix}*"):
            shutil.rmtree(left)
