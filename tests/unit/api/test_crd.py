"""The CRD: current, small, structural, bounded, with the defaults of the models; and the schema of the status."""

import copy
import json
from collections.abc import Callable, Iterator

import pytest
from pydantic import ValidationError

from rstar2_train.api import admission
from rstar2_train.api.cel import RULES
from rstar2_train.api.crd import CRD_FILE, TEMPLATE, build_crd, render_crd, render_template
from rstar2_train.api.job import JobSpec
from rstar2_train.api.objectives import OBJECTIVES
from rstar2_train.api.status import JobStatus
from tests.support.good_manifest import GOOD


def nodes(schema: dict, path: str = "") -> Iterator[tuple[str, dict]]:
    yield path, schema
    for name, value in schema.get("properties", {}).items():
        yield from nodes(value, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from nodes(schema[key], f"{path}[]")


def root() -> dict:
    return build_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def spec() -> dict:
    return root()["properties"]["spec"]


def status() -> dict:
    return root()["properties"]["status"]


def test_crd_files_are_current() -> None:
    """crds/ and the chart's copy are what `make crds` writes, and so is the chart's admission policy."""
    files = (CRD_FILE, render_crd()), (TEMPLATE, render_template()), (admission.TEMPLATE, admission.render_template())
    for path, text in files:
        current = path.read_text() == text  # not inside the assert: pytest would print both
        assert current, f"{path}: run `make crds`"


def test_crd_is_below_200_kb() -> None:
    """`kubectl apply` keeps a copy as compact JSON in an annotation, which may have 262,144 bytes."""
    assert len(json.dumps(build_crd(), separators=(",", ":"))) < 200_000


@pytest.mark.parametrize("tree", [spec, status])
def test_crd_schema_is_structural_and_bounded(tree: Callable[[], dict]) -> None:
    """Every node has a type, and every list, string and map a limit."""
    for path, node in nodes(tree()):
        assert "$ref" not in node, path
        amount, free = "x-kubernetes-int-or-string" in node, "x-kubernetes-preserve-unknown-fields" in node
        assert "type" in node or amount or free, path
        if node.get("type") == "array":
            assert "maxItems" in node, path
        if "additionalProperties" in node:
            assert "maxProperties" in node, path
        if free and node.get("type") == "object":
            assert "maxProperties" in node, path
            continue
        if amount or free or (node.get("type") == "string" and not {"enum", "format"} & set(node)):
            assert "maxLength" in node, path
        if free:
            assert {"maxItems", "maxProperties"} <= set(node), path


@pytest.mark.parametrize("tree", [spec, status])
def test_crd_every_field_has_a_description(tree: Callable[[], dict]) -> None:
    """`kubectl explain` has a text for every field."""
    for path, node in nodes(tree()):
        if path and not path.endswith("[]"):
            assert node.get("description"), path


def test_crd_grpo_defaults_are_in_descriptions() -> None:
    """GRPO fields have their default in the description, and none in the schema."""
    field = spec()["properties"]["grpo"]["properties"]["gradClip"]
    assert field["description"].endswith("Default: 1.0.")
    assert "default" not in field


def test_crd_objective_fields_name_their_types_and_defaults() -> None:
    """A field of an objective names the types that have it, with their defaults; a shared field names none."""
    fields = spec()["properties"]["grpo"]["properties"]["objective"]["properties"]
    clip = fields["clipHigh"]["description"]
    assert clip.endswith("Types and their defaults: GRPO: 0.28, DrGRPO: 0.2, DAPO: 0.28, GSPO: 0.0004, CISPO: 4.0.")
    assert "Only for" not in fields["truncated"]["description"]
    assert fields["type"]["enum"] == list(OBJECTIVES)


def test_crd_defaults_equal_those_of_the_models() -> None:
    """A job with the defaults of the API server equals a job with those of the models."""
    filled = fill({"stages": GOOD["spec"]["stages"], "model": GOOD["spec"]["model"]}, spec())
    assert filled["rollout"]["replicas"] == 1  # /scale needs it to be there
    assert filled["storage"] == {"accessModes": ["ReadWriteMany"], "reclaimPolicy": "Retain", "addressing": "Path"}
    evaluate = {"name": "e", "type": "Evaluate", "evaluate": {"benchmarks": [{"name": "b", "data": "d"}]}}
    assert fill(evaluate, spec()["properties"]["stages"]["items"])["evaluate"]["sampling"]["temperature"] == 0.6
    assert JobSpec.model_validate(filled) == JobSpec.model_validate(
        {"stages": GOOD["spec"]["stages"], "model": GOOD["spec"]["model"]}
    )


def fill(value: dict, schema: dict) -> dict:
    """Return a value with defaults, as the API server adds them."""
    if isinstance(value, list):
        return [fill(entry, schema["items"]) for entry in value]
    if not isinstance(value, dict) or "properties" not in schema:
        return value
    fields = schema["properties"]
    defaults = {name: copy.deepcopy(field["default"]) for name, field in fields.items() if "default" in field}
    return {name: fill(entry, fields[name]) for name, entry in (defaults | value).items()}


def test_crd_has_every_rule_with_a_message() -> None:
    """Every CEL rule is in the schema, with a one-line message."""
    entries = [entry for _, node in nodes(root()) for entry in node.get("x-kubernetes-validations", ())]
    assert len(entries) == len(RULES)
    for entry in entries:
        assert len(entry["message"]) < 2048
        assert "\n" not in entry["message"]


def test_crd_status_has_columns_scale_and_list_keys() -> None:
    """Printed columns and /scale refer to status fields; status lists are maps."""
    fields = status()["properties"]
    for name, key in (("conditions", "type"), ("stages", "name"), ("roles", "name")):
        assert fields[name]["x-kubernetes-list-type"] == "map"
        assert fields[name]["x-kubernetes-list-map-keys"] == [key]
        assert key in fields[name]["items"]["required"]
    version = build_crd()["spec"]["versions"][0]
    for column in version["additionalPrinterColumns"]:
        field = column["jsonPath"].split("[")[0].removeprefix(".status.")
        assert field in fields or field == ".metadata.creationTimestamp", column
    assert [c["name"] for c in version["additionalPrinterColumns"] if not c.get("priority")] == [
        *("Phase", "Stage", "Step", "Reward", "Progress", "Restarts", "Age"),
    ]
    scale = version["subresources"]["scale"]
    assert scale["statusReplicasPath"].removeprefix(".status.") in fields
    assert scale["labelSelectorPath"].removeprefix(".status.") in fields


def test_crd_status_model_rejects_invalid_statuses() -> None:
    """The model of the status has the bounds of the schema."""
    JobStatus.model_validate({"phase": "Running", "stages": [{"name": "rl", "metrics": {"reward": "0.5"}}]})
    for bad in ({"progressPercentage": 101}, {"stages": [{"name": "rl", "metrics": {"loss": 0.5}}]}, {"x": 1}):
        with pytest.raises(ValidationError):
            JobStatus.model_validate(bad)
