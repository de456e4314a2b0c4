"""Names of images: one grammar in manifest, settings and chart, so that no pod waits for a name that cannot exist."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rstar2_operator.builders.objects import build_context
from rstar2_operator.settings import OperatorSettings
from rstar2_train.api.base import IMAGE, REGISTRY_PREFIX
from rstar2_train.api.issue import InvalidJob
from rstar2_train.api.validation import check
from tests.support.simulated_cluster import manifest

SHA256 = "sha256:" + 64 * "0"
GOOD = [
    "redis",
    "redis:7",
    "docker.io/library/redis:7",
    "localhost/a",
    "host:5000/a/b_c:1.0",
    "127.0.0.1:80/a:1",
    "[::1]:5000/a:1",
    "Registry.example.org/a",
    "a__b/c---d/e.f:V_1-2.x",
    f"a@{SHA256}",
    f"registry:5000/a:1@{SHA256}",
    "a@sha512:" + 128 * "f",
    "a:" + 128 * "t",
]
BAD = [
    "",
    " a",
    "a b",
    "a\n",
    "a:b:c",
    "host:5000/a:1:2",
    "host:port/a",
    "https://host/a",
    "A",
    "host/A",
    "/a",
    "a/",
    "a//b",
    "a:",
    "a:-1",
    "a:" + 129 * "t",
    "-a",
    "a..b",
    "a___b",
    "a@sha256:12",
    "a@sha256:" + 64 * "F",
    f"a@{SHA256}:1",
]
FIELDS = {
    "trainer": {},
    "rollout": {},
    "judge": {},
    "redis": {},
    "agent": {"command": ["a"]},
    "environments[0]": {"name": "game", "command": ["serve"]},
}
"""Field of an image in the spec -> what else it needs."""


def errors(field: str, image: str) -> list[str]:
    """Return the errors of a job with one image that are about its name."""
    name, _, is_list = field.partition("[")
    value: dict[str, Any] = {**FIELDS[field], "image": image}
    issues = check(manifest("g", **{name: [value] if is_list else value}))[1]
    return [str(issue) for issue in issues if issue.field == f"spec.{field}.image"]


@pytest.mark.parametrize("field", FIELDS)
def test_images_of_all_fields_follow_the_grammar(field: str) -> None:
    """Each field accepts the references that container runtimes accept, and names itself with others."""
    assert {image: errors(field, image) for image in GOOD} == {image: [] for image in GOOD}
    for image in BAD:
        [error] = errors(field, image)
        assert error.startswith(f"error: spec.{field}.image is {image!r}"[:60]) and "HOST:PORT/PATH:TAG@DIGEST" in error


@pytest.mark.parametrize("variable", ["TRAINER_IMAGE", "ROLLOUT_IMAGE", "JUDGE_IMAGE", "REDIS_IMAGE"])
def test_images_of_the_site_follow_the_grammar(variable: str) -> None:
    """The operator does not start with an image that no pod could have."""
    OperatorSettings.from_env({f"RSTAR2_{variable}": "a:1"})
    with pytest.raises(ValueError, match=f"RSTAR2_{variable}='a:b:c': allowed: an image"):
        OperatorSettings.from_env({f"RSTAR2_{variable}": "a:b:c"})


@pytest.mark.parametrize("prefix", ["https://mirror", "mirror/Hub", "mirror/hub:1", "/mirror"])
def test_registry_prefix_is_an_address(prefix: str) -> None:
    """A prefix of the site or of a job is a registry and a path."""
    with pytest.raises(ValueError, match="RSTAR2_REGISTRY_PREFIX"):
        OperatorSettings.from_env({"RSTAR2_REGISTRY_PREFIX": prefix})
    issues = check(manifest("g", registryPrefix=prefix))[1]
    assert [issue.field for issue in issues if not issue.warning] == ["spec.registryPrefix"]


def test_registry_prefix_before_a_port_is_refused() -> None:
    """A name with a port cannot follow a prefix; the job's own full name can replace it."""
    settings = OperatorSettings(judge_image="hub:5000/judge:1")
    job, _ = check(manifest("g", registryPrefix="mirror.example.com"))
    assert job is not None
    with pytest.raises(InvalidJob, match=r"spec\.judge\.image is 'mirror\.example\.com/hub:5000/judge:1'"):
        build_context(job, settings)
    job.spec.judge.image = "mirror.example.com/judge:1"
    build_context(job, settings)


def test_chart_has_the_patterns_of_images() -> None:
    """`helm install` refuses what the operator would refuse; an empty value is the default."""
    schema = json.loads(Path("helm/rstar2/values.schema.json").read_text())
    pattern = schema["definitions"]["image"]["pattern"]
    assert pattern == f"^({IMAGE[1:-1]})?$"
    assert schema["properties"]["registryPrefix"]["pattern"] == f"^({REGISTRY_PREFIX[1:-1]})?$"
    images = schema["properties"]["jobImages"]["properties"]
    assert {role: value["$ref"] for role, value in images.items()} == dict.fromkeys(
        ("trainer", "rollout", "judge", "redis"), "#/definitions/image"
    )
    assert re.fullmatch(pattern, "")
