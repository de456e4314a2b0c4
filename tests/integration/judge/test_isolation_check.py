"""The isolation check: a leaky sandbox never gets a call, and the pool reports what leaked."""

from pathlib import Path
from typing import Any

import pytest

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.judge.sandbox import local
from rstar2_train.judge.sandbox.oci_bundle import find_runsc, prepare
from rstar2_train.judge.sandbox.rootfs import SetupError
from rstar2_train.judge.types import QueuedCall
from rstar2_train.judge.worker.pool import SandboxPool
from rstar2_train.judge.worker.provider import LocalSandboxProvider
from rstar2_train.judge.worker.sandbox_supervisor import PoolError


async def test_isolation_check_rejects_a_leaky_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox with a secret in its environment gets no call; the pool fails with the name of the secret."""
    try:
        find_runsc()
    except SetupError as error:
        pytest.skip(str(error))
    isolated = local.bundle_config

    def leaky(root: Path, arguments: list[str]) -> dict[str, Any]:
        config = isolated(root, arguments)
        config["process"]["env"].append("RSTAR2_REDIS_PASSWORD=hunter2")
        return config

    monkeypatch.setattr(local, "bundle_config", leaky)
    pool = SandboxPool(LocalSandboxProvider(prepare(isolation="gvisor", state=tmp_path, lanes=("bare",)), 1))
    pool.start()
    try:
        call = QueuedCall(id="1", reply_to="", code="print(1)", stdin="", limits=JudgeLimits(), deadline=0)
        future = pool.submit(call)
        with pytest.raises(PoolError, match=r"not isolated.*secrets in the environment.*RSTAR2_REDIS_PASSWORD"):
            await pool.supervisor.failed
        assert pool.ready == 0 and not future.done()
    finally:
        await pool.stop()
    assert not list(tmp_path.glob("rstar2-sandbox-*"))
