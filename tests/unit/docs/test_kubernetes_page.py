"""docs/kubernetes.md has the requests, limits and shared memory of the pods that the operator builds."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from rstar2_operator.builders import rollout, trainer
from rstar2_operator.builders.judge import EXECUTOR_BASE_MIB, JUDGE_RESOURCES, PACKAGES_MIB
from rstar2_operator.builders.pod import WITHOUT_INJECTION
from rstar2_operator.builders.storage import DEFAULT_SIZE
from rstar2_operator.builders.trainer import CPU_RESOURCES
from rstar2_train.api.roles import EXECUTOR_PATCH_FIELDS, RESERVED_PREFIXES, RESERVED_VARIABLES, RedisSpec

PAGE = (Path(__file__).parents[3] / "docs" / "kubernetes.md").read_text("utf-8")


def test_kubernetes_page_has_the_requests_of_each_pod() -> None:
    """The table for a ResourceQuota, and the size of the claim."""
    table = dict(re.findall(r"^\| (prepare, report|judge|executor|Redis)[^|]* \| (.*) \|$", PAGE, re.MULTILINE))
    redis = RedisSpec()
    helper, judge = CPU_RESOURCES["requests"], JUDGE_RESOURCES["requests"]
    assert table["prepare, report"] == f"{helper['cpu']}, {helper['memory']} | none"
    assert table["judge"] == f"{judge['cpu']}, {judge['memory']} each | {JUDGE_RESOURCES['limits']['memory']} each"
    assert f"+ {EXECUTOR_BASE_MIB}Mi" in table["executor"] and f" {PACKAGES_MIB}Mi more" in table["executor"]
    requests, limits = redis.resources.requests, redis.resources.limits
    claim = f"and a claim of {redis.storage}"
    assert table["Redis"] == f"{requests['cpu']}, {requests['memory']}, {claim} | {limits['memory']}"
    assert f"{DEFAULT_SIZE} by default" in PAGE


def test_kubernetes_page_has_the_shared_memory_of_pods() -> None:
    """/dev/shm counts towards a memory limit: the sizes with and without accelerators."""
    sizes = {
        role: re.search(r'shared_memory\("(\w+)" if .* else "(\w+)"\)', inspect.getsource(module))
        for role, module in (("trainer", trainer), ("engine", rollout))
    }
    rows = re.findall(r"^\| (trainer pod of `SFT` and `GRPO`|engine) \| (\w+) \| (\w+) \|$", PAGE, re.MULTILINE)
    assert [(name.split()[0], (on_gpu, on_cpu)) for name, on_gpu, on_cpu in rows] == [
        (role, match.groups()) for role, match in sizes.items() if match
    ]
    assert all(sizes.values())


def test_kubernetes_page_has_the_limits_of_patches() -> None:
    """Fields that executors accept, and variables that no patch may set."""
    (accepted,) = re.findall(r"^Executors accept ([^;]*);", PAGE, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", accepted)) == set(EXECUTOR_PATCH_FIELDS)
    (reserved,) = re.findall(r"^\| (`HOME`.*) \| The job is rejected. \|$", PAGE, re.MULTILINE)
    variables = {*RESERVED_VARIABLES, *(f"{prefix}*" for prefix in RESERVED_PREFIXES)}
    assert set(re.findall(r"`([\w*]+)`", reserved)) == variables


def test_kubernetes_page_has_the_keys_of_injectors() -> None:
    """Labels and annotations by which pods opt out, with their values."""
    (row,) = re.findall(r"^\| trainer, prepare, report, executor \| (.*) \|$", PAGE, re.MULTILINE)
    stated = dict(re.findall(r'`([\w./-]+): "?(\w+)"?`', row))
    assert stated == {name: value for keys in WITHOUT_INJECTION for name, value in keys.items()}
