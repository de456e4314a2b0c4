"""How the pods of an attempt find one another, and what Ray is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from rstar2_train.launch.pod import ray_cluster
from rstar2_train.launch.pod.ray_cluster import RayCluster

CLUSTER = RayCluster(head="job-sft-2-0.job-trainer", port=6379, address="10.0.0.7", slots=8, gpus=8)


def test_the_head_is_index_0_under_the_services_name() -> None:
    assert ray_cluster.head_host("tiny-rl-8k-12-3", subdomain="tiny-trainer") == "tiny-rl-8k-12-0.tiny-trainer"
    for host in ("", "3", "tiny-", "tiny-rl-x"):
        with pytest.raises(ValueError, match="HOSTNAME"):
            ray_cluster.head_host(host, subdomain="s")


def test_commands() -> None:
    head, node = CLUSTER.head_command(store_bytes=5), CLUSTER.join_command(store_bytes=5)
    assert {"--head", "--block", "--port=6379", "--include-dashboard=false"} <= set(head)
    assert {"--block", "--address=job-sft-2-0.job-trainer:6379"} <= set(node) and "--head" not in node
    for command in (head, node):
        told = {"--node-ip-address=10.0.0.7", "--num-cpus=8", "--num-gpus=8", "--object-store-memory=5"}
        assert told <= set(command)


def test_all_pods_of_an_attempt_have_one_token_that_others_do_not() -> None:
    one = ray_cluster.environment("secret")
    assert one == ray_cluster.environment("secret") and one["RAY_AUTH_MODE"] == "token"
    assert "secret" not in one["RAY_AUTH_TOKEN"]
    assert one["RAY_AUTH_TOKEN"] != ray_cluster.environment("other")["RAY_AUTH_TOKEN"]


def test_the_object_store_is_within_bounds(tmp_path: Path) -> None:
    assert ray_cluster.LEAST_STORE_BYTES <= ray_cluster.store_bytes(tmp_path) <= ray_cluster.MOST_STORE_BYTES


async def test_a_name_that_does_not_resolve_is_not_reachable() -> None:
    assert not await ray_cluster.reachable("no-such-host.invalid", 6379)
