"""A real vLLM engine for tests, and a tiny model that repeats one conversation.

`Engine` starts, kills and restarts the server on one port, as a supervisor would. `memorising_model` trains a model
that repeats the conversation when it is sampled greedily: several calls in a turn, a malformed one, an answer.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.utils.ports import free_ports
from tests.support.model_turns import render_call

BOOT_SECONDS = 600
SYSTEM = "Tool: execute_python_code_with_standard_io"
QUESTION = "Find the sum of 12 and 30."
FIRST_TURN = "\n".join(
    [
        render_call("print(12+30)"),
        '<tool_call>\n{"name": "execute_python_code_with_standard_io", "arguments": {"code": "1"}\n</tool_call>',
        render_call("print(6*7)"),
    ]
)
FIRST_REPLY = ["42", "error: invalid tool call: not valid JSON (Expecting ',' delimiter)", "42"]
LAST_TURN = "<answer>\\boxed{42}</answer>"
RESPONSE_TOKENS = 200
JOB = {
    "metadata": {"name": "test"},
    "spec": {
        "model": {"source": "m", "systemPrompt": SYSTEM, "promptPrefix": ""},
        "accelerator": {"vendor": "None"},
        "rollout": {"engineArgs": {"kv-cache-memory-bytes": 64 * 2**20}, "weightTransport": "Collective"},
        "stages": [
            {
                "name": "rl",
                "type": "GRPO",
                "grpo": {"data": "d", "steps": 1, "maxPromptTokens": 312, "maxResponseTokens": RESPONSE_TOKENS},
            }
        ],
    },
}


def missing_packages() -> str:
    """Return which packages for an engine are not installed, as a message; empty if all are."""
    missing = [name for name in ("vllm", "torch", "transformers") if importlib.util.find_spec(name) is None]
    return f"not installed: {', '.join(missing)} (make setup)" if missing else ""


def engine_job() -> AgenticRLJob:
    """Return the job of the test's engine."""
    return AgenticRLJob.model_validate(JOB)


def conversation() -> list[dict[str, str]]:
    """Return the conversation that the memorising model repeats."""
    return [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": FIRST_TURN},
        *({"role": "tool", "content": text} for text in FIRST_REPLY),
        {"role": "assistant", "content": LAST_TURN},
    ]


def load_chat_format(folder: Path) -> ChatFormat:
    """Return the chat format of the test's job."""
    return ChatFormat.load(folder, engine_job().spec.model)


def random_model(folder: Path, *, seed: int) -> Path:
    """Write a tiny policy with random weights and a tied head, as the demo's policy has."""
    from rstar2_train.data.tiny.policy import write_policy

    texts = [message["content"] for message in conversation()] * 50
    write_policy(folder, texts=texts, seed=seed)
    return folder


def mixture_model(folder: Path) -> Path:
    """Write a tiny mixture of experts with random weights; its second layer has no experts."""
    import torch
    from transformers import AutoConfig, Qwen3MoeConfig, Qwen3MoeForCausalLM

    dense = AutoConfig.from_pretrained(random_model(folder, seed=0))
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=dense.vocab_size,
        hidden_size=64,
        intermediate_size=96,
        moe_intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=dense.max_position_embeddings,
        num_experts=8,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        mlp_only_layers=[1],
        initializer_range=0.15,
        pad_token_id=dense.pad_token_id,
        eos_token_id=dense.eos_token_id,
        bos_token_id=dense.bos_token_id,
    )
    (folder / "model.safetensors").unlink()
    Qwen3MoeForCausalLM(config).save_pretrained(folder)
    return folder


def memorising_model(folder: Path, *, base: Path) -> Path:
    """Train `base` until it repeats the conversation."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    encoded = load_chat_format(base).encode_conversation(conversation())
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    ids = torch.tensor([encoded.token_ids])
    labels = torch.where(torch.tensor([encoded.mask]) == 1, ids, -100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(300):
        loss = model(input_ids=ids, labels=labels).loss
        if loss.item() < 0.01:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    else:
        raise AssertionError(f"the tiny model did not learn one conversation: loss {loss.item():.3f}")
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    return folder


class Engine:
    """One vLLM server on a fixed port; `start` after `kill` restarts it, as a supervisor would."""

    def __init__(
        self,
        model: Path,
        *,
        folder: Path,
        port: int | None = None,
        job: AgenticRLJob | None = None,
        disk: Path | None = None,
    ) -> None:
        """`job`: of the engine; default: that of the tests. `disk`: its own, for copies from the bucket of `job`."""
        self.model = model
        self.port = port or free_ports(1)[0]
        self.url = f"http://127.0.0.1:{self.port}"
        self.token = secrets.token_urlsafe(24)
        self.log = folder / f"engine-{self.port}.log"
        self.disk = disk
        self.folder = folder
        self._job = folder / "job.json"
        for file in (self._job, folder / "source.json"):
            file.write_text((job or engine_job()).model_dump_json(), encoding="utf-8")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *, wait: bool = True) -> None:
        """Start the server in its own process group."""
        argv = [sys.executable, "-m", "rstar2_train.inference.server", "--job", str(self._job)]
        argv += ["--model", str(self.model), "--port", str(self.port)]
        argv += ["--bucket", str(self.disk)] if self.disk else []
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                argv,
                stdout=log,
                stderr=log,
                env=os.environ | {"RSTAR2_ENGINE_TOKEN": self.token, "RSTAR2_HASH_WEIGHTS": "1"},
                start_new_session=True,
            )
        if wait:
            self.wait()

    def wait(self) -> None:
        """Wait until the server responds. Raises AssertionError with the end of its log if it does not."""
        deadline = time.monotonic() + BOOT_SECONDS
        while time.monotonic() < deadline:
            assert self._process is not None
            if self._process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=5):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.3)
        raise AssertionError(f"the engine did not start:\n{self.log.read_text(errors='replace')[-3000:]}")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the server and its workers."""
        assert self._process is not None
        os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """Kill the server and its workers with SIGKILL."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
