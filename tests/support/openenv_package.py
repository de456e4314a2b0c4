"""An environment of PyPI, unmodified, and a tiny task for it: the package openenv-dipg-safety in a venv of its own.

Its server reads medical texts with questions, and rewards a response that reports a contradiction in the text. The
demonstrations report one in half of the cases, so that the rollouts of a group have different rewards.
"""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from rstar2_train.data.tiny import write_rows
from rstar2_train.data.tiny.policy import write_policy
from rstar2_train.tools.schema import call_text
from scripts.setup import CACHE, exclusive, find_uv, step

REQUIREMENTS = Path(__file__).with_name("openenv_package.txt")
SYSTEM_PROMPT = "Tool: step"
DRUGS = ("aspirin", "digoxin", "heparin", "insulin")
SERVER = ("uvicorn", "med_safety_gym.app:app", "--log-level", "warning", "--host", "{host}", "--port", "{port}")
"""Command line of the package's server."""


def venv() -> Path:
    """Return the venv with the environment; install it if the cache does not have it."""
    digest = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()[:12]
    folder = CACHE / f"openenv-package-{digest}"
    with exclusive(CACHE / "openenv-package.lock", "installing an environment of PyPI"):
        if not (folder / "complete").exists():
            with step("environment openenv-dipg-safety"):
                uv = [find_uv(), "--quiet"]  # links packages that other environments have too; compiles nothing
                subprocess.run([*uv, "venv", "--clear", "-p", sys.executable, str(folder)], check=True)
                install = [*uv, "pip", "install", "--no-deps", "-p", str(folder), "-r", str(REQUIREMENTS)]
                subprocess.run(install, check=True)
                (folder / "complete").touch()
    return folder


def server_command(folder: Path) -> list[str]:
    """Return the command line of a server that has the texts of a task."""
    settings = {"DIPG_DATASET_PATH": folder / "texts.jsonl", "HF_HUB_OFFLINE": 1, "HF_HOME": "/tmp/hf"}
    program, *arguments = SERVER
    return ["env", *(f"{name}={value}" for name, value in settings.items()), f"{venv() / 'bin' / program}", *arguments]


def response(drug: str, *, conflicting: bool) -> str:
    """Return a response in the form that the environment asks for."""
    final = "conflicting" if conflicting else "3 mg"
    return f"<think>{drug}</think><proof>{drug}</proof><answer>{final}</answer>"


def write_task(folder: Path, *, seed: int = 0, demonstrations: int = 2000) -> None:
    """Write texts of the environment, demonstrations, rows and an untrained policy into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(f"openenv/{seed}")
    texts, talks = [], []
    for drug in DRUGS:
        question = f"<context>\nA: {drug} 3 mg. B: {drug} 7 mg.\n</context>\n<question>\n{drug}?\n</question>"
        answer = {"role": "assistant", "content": response(drug, conflicting=True)}
        texts.append({"messages": [{"role": "user", "content": question}, answer]})
    for _ in range(demonstrations):
        drug = rng.choice(DRUGS)
        call = call_text("step", {"llm_response": response(drug, conflicting=rng.random() < 0.5)})
        talk = [
            ("system", SYSTEM_PROMPT),
            ("user", "Dose?"),
            ("assistant", ""),
            ("tool", f"{drug}?"),
            ("assistant", call),
        ]
        talks.append({"messages": [{"role": role, "content": content} for role, content in talk]})
    write_rows(folder / "texts.jsonl", texts)
    write_rows(folder / "sft.jsonl", talks)
    write_rows(folder / "rows.jsonl", [{"id": f"text-{at}", "problem": "Dose?", "answer": "-"} for at in range(4)])
    samples = [
        "".join(f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n" for turn in talk["messages"])
        for talk in talks[:200]
    ]
    write_policy(folder / "base", texts=samples, seed=seed)


def job(folder: Path, *, steps: int = 3) -> dict[str, Any]:
    """Return the manifest of a job that trains on the environment."""
    text = f"""
    apiVersion: rstar2.dev/v1alpha1
    kind: AgenticRLJob
    metadata: {{name: dipg}}
    spec:
      model: {{source: {folder / "base"}, systemPrompt: "{SYSTEM_PROMPT}", promptPrefix: ""}}
      accelerator: {{vendor: None}}
      trainer: {{replicas: 1, gpusPerReplica: 0, activationCheckpointing: Never, tokensPerMicroBatch: 2048}}
      rollout:
        engineArgs: {{dtype: float32, max-model-len: 400, max-num-seqs: 8, enforce-eager: true,
                      kv-cache-memory-bytes: 67108864}}
      executor: {{replicas: 1, cpu: 500m}}
      environments:
        - {{name: dipg, maxConcurrentEpisodes: 1, replicas: 2, observation: question}}
      grpo:
        {{promptsPerStep: 4, rolloutsPerPrompt: 4, keepPerPrompt: 2, updatesPerStep: 1, learningRate: 1.0e-4,
          warmupSteps: 0, weightDecay: 0.0, maxPromptTokens: 96, maxResponseTokens: 160, maxTurns: 2}}
      stages:
        - name: sft
          type: SFT
          sft: {{data: {folder / "sft.jsonl"}, epochs: 2, batchSize: 32, learningRate: 3.0e-3, maxTokens: 300}}
        - {{name: rl, type: GRPO, grpo: {{data: {folder / "rows.jsonl"}, steps: {steps}}}}}
    """
    manifest: dict[str, Any] = yaml.safe_load(text)
    manifest["spec"]["environments"][0]["command"] = server_command(folder)
    return manifest
