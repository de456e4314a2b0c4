"""The job manifests of examples/, without its other Kubernetes objects."""

from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
MANIFESTS = [path for path in sorted(EXAMPLES.glob("*.yaml")) if "\nkind: AgenticRLJob\n" in path.read_text("utf-8")]
