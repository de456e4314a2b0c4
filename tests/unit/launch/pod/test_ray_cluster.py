"""Names, commands and environment of an attempt's Ray cluster."""

from __future__ import annotations

import pytest

from rstar2_train.launch.pod import ray_cluster
from rstar2_train.launch.pod.ray_cluster import RayCluster

CLUSTER = RayCluster(head="job-sft-2-0.job-trainer", port=6379, address="10.0.0.7", slots=8, gpus=8)


def test_head_host_is_index_0_of_the_service() -> None:
    """The name comes from this pod's host name; another host name is an error."""
    assert ray_cluster.head_host("tiny-rl-8k-12-3", subdomain="tiny-trainer") == "tiny-rl-8k-12-0.tiny-trainer"
    for host in ("", "3", "tiny-", "tiny-rl-x"):
        with pytest.raises(ValueError, match="HOSTNAME"):
            ray_cluster.head_host(host, subdomain="s")


def test_commands_of_head_and_node() -> None:
    """Both commands have the resources of the pod."""
    head, node = CLUSTER.head_command(store_bytes=5), CLUSTER.join_command(store_bytes=5)
    assert {"--head", "--block", "--port=6379", "--include-dashboard=false"} <= set(head)
    assert {"--block", "--address=job-sft-2-0.job-trainer:6379"} <= set(node) and "--head" not in node
    for command in (head, node):
        options = {"--node-ip-address=10.0.0.7", "--num-cpus=8", "--num-gpus=8", "--object-store-memory=5"}
        assert options <= set(command)


def test_environment_token_is_derived_from_the_secret() -> None:
    """All pods of an attempt have the same token, which does not contain the secret."""
    env = ray_cluster.environment("secret")
    assert env == ray_cluster.environment("secret") and env["RAY_AUTH_MODE"] == "token"
    assert "secret" not in env["RAY_AUTH_TOKEN"]
    assert env["RAY_AUTH_TOKEN"] != ray_cluster.environment("other")["RAY_AUTH_TOKEN"]


async def test_reachable_unknown_name_is_false() -> None:
    """The name of a pod that has not started does not resolve yet."""
    assert not await ray_cluster.reachable("no-such-host.invalid", 6379)
