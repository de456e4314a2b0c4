"""vLLM's description of the model class of the tests, which pods with engines read from the clone that they mount.

An engine that does not find it imports vLLM once more, in another process: ten seconds of processor time per start. On
a machine the user's cache keeps the description; a pod has no such folder.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from scripts.setup import CACHE, ROOT, exclusive, step

FOLDER = ROOT / "build" / "vllm"
"""VLLM_CACHE_ROOT of the pods. They cannot write to it."""
DESCRIBE = """
from vllm.model_executor.models.registry import ModelRegistry
ModelRegistry.models["Qwen3ForCausalLM"].inspect_model_cls()
"""


def ensure() -> Path:
    """Return FOLDER with the description; create it if the cache does not have that of the locked packages."""
    packages = hashlib.sha256((ROOT / "requirements.lock").read_bytes()).hexdigest()[:12]
    cache = CACHE / f"vllm-{packages}"
    with exclusive(CACHE / "vllm.lock", "describing the model class of the tests"):
        if not (cache / "modelinfos").exists():
            with step("vLLM's description of the model class"):
                environment = {**os.environ, "VLLM_CACHE_ROOT": str(cache)}
                subprocess.run([sys.executable, "-c", DESCRIBE], env=environment, check=True, capture_output=True)
        for file in (cache / "modelinfos").iterdir():
            target = FOLDER / "modelinfos" / file.name
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                new = target.with_suffix(f".{os.getpid()}")
                shutil.copyfile(file, new)  # readable for the user of a pod, as the original is not
                new.replace(target)
    return FOLDER
