"""tests/kube_node is independent: it imports nothing of the project but the set-up script."""

from __future__ import annotations

import ast

import pytest

from tests.language import sources

ALLOWED = ("scripts.setup", "tests.kube_node")
PROJECT = ("rstar2_train", "rstar2_operator", "scripts", "tests", "bench")


@pytest.mark.parametrize("path", sources.modules("tests/kube_node/"))
def test_kube_node_imports_nothing_of_the_project(path: str) -> None:
    """The harness can be used for another project, and a change of rStar2 cannot break the boot."""
    imported = []
    for node in ast.walk(sources.tree(path)):
        if isinstance(node, ast.ImportFrom):
            imported.append(node.module or "")
        elif isinstance(node, ast.Import):
            imported += [alias.name for alias in node.names]
    own = [name for name in imported if name.split(".")[0] in PROJECT]
    assert [name for name in own if not name.startswith(ALLOWED)] == []
