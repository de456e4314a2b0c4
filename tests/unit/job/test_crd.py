"""The CRD in crds/ is the one that the models make, small enough, and structural."""

from collections.abc import Iterator

from rstar2_train.job.crd import CRD_FILE, build_crd, render_crd


def nodes(schema: dict, path: str = "") -> Iterator[tuple[str, dict]]:
    yield path, schema
    for name, value in schema.get("properties", {}).items():
        yield from nodes(value, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from nodes(schema[key], f"{path}[]")


def spec() -> dict:
    return build_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]


def test_no_drift() -> None:
    current = CRD_FILE.read_text() == render_crd()  # not inside the assert: pytest would print both files
    assert current, "run `make crds`"


def test_small() -> None:
    assert len(render_crd()) < 100_000


def test_structural_and_bounded() -> None:
    for path, node in nodes(spec()):
        assert "$ref" not in node, path
        assert (
            "type" in node or node.get("x-kubernetes-int-or-string") or "x-kubernetes-preserve-unknown-fields" in node
        ), path
        if node.get("type") == "array":
            assert "maxItems" in node, path
        if node.get("type") == "string" and "enum" not in node:
            assert "maxLength" in node, path


def test_every_field_is_described() -> None:
    for path, node in nodes(spec()):
        if path and not path.endswith("[]"):
            assert node.get("description"), path


def test_grpo_defaults_are_told() -> None:
    field = spec()["properties"]["grpo"]["properties"]["clipHigh"]
    assert field["description"].endswith("Default: 0.28.")
    assert "default" not in field
