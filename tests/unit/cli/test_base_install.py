"""`pip install rstar2` without extras: the commands that need no trainer, judge or engine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
OTHERS = (
    *("torch", "transformers", "ray", "vllm", "mlflow", "pyarrow", "tokenizers", "huggingface_hub", "matplotlib"),
    *(
        "redis",
        "fastapi",
        "uvicorn",
        "aiohttp",
        "httpx2",
        "websockets",
        "mcp",
        "jinja2",
        "psutil",
        "kopf",
        "kubernetes",
    ),
    *("jsonschema", "docstring_parser", "pint", "langdetect", "cryptography", "prometheus_client", "uvloop", "anyio"),
)
"""Modules of the extras."""
CODE = f"""
import sys
for name in {OTHERS}:
    sys.modules[name] = None
from rstar2_train.cli.kubectl_plugin import completion
from rstar2_train.cli.main import main, parser
assert main(["validate", "examples/tiny.yaml"]) == 0
assert "rstar2_train.cli.data" not in sys.modules, "a command imports the module of another"
parser()
assert main(["plan", "examples/tiny.yaml"]) == 0
assert main(["verify", "--known", "1", "--answer", "1.0"]) == 0
assert main(["doctor"]) in (0, 1)
completion("bash")
"""


def test_base_install_has_its_commands() -> None:
    """They import only the dependencies of pyproject.toml, so that the plug-in of kubectl installs in seconds."""
    done = subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "no server of a teacher was tried" not in done.stdout  # the manifest has none
