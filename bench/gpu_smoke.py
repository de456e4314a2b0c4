"""`make gpu-smoke`: the smoke curriculum (examples/smoke.yaml) with trainer and engine on the GPUs of this machine.

Two GPUs: one for the trainer, one for the engine. One GPU: both share it. Writes bench/results/gpu.json with the
devices, the time and the result of every stage. Without a GPU it prints the reason, and exits with 0.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from rstar2_train.api.loader import read_manifest
from rstar2_train.api.roles import GPU_RESOURCES, Vendor
from rstar2_train.api.state_dir import JobState
from rstar2_train.api.validation import load
from rstar2_train.launch.local import preflight
from rstar2_train.launch.local.devices import DevicesError, visible_devices
from rstar2_train.launch.local.devices import vendor as local_vendor

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results" / "gpu.json"
CPU_ARGUMENTS = ("kv-cache-memory-bytes", "enforce-eager")
"""engineArgs of the example that are for engines on the CPU."""


def main() -> int:
    """Run the curriculum; return the exit code."""
    vendor = local_vendor()
    if vendor == "None":
        print("gpu-smoke: skipped: this machine has no GPU (neither /dev/nvidiactl nor /dev/kfd)")
        return 0
    try:
        devices = visible_devices(vendor, os.environ)
    except DevicesError as error:
        print(f"gpu-smoke: {error}", file=sys.stderr)
        return 1
    data = on_gpu(read_manifest(ROOT / "examples" / "smoke.yaml"), vendor)
    job = load(data)
    assignment = preflight.assign_devices(job)
    with tempfile.TemporaryDirectory(prefix="rstar2-gpu-smoke-") as folder:
        manifest = Path(folder) / "smoke.yaml"
        manifest.write_text(yaml.safe_dump(data), encoding="utf-8")
        started = time.monotonic()
        command = [sys.executable, "-m", "rstar2_train.cli", "run", str(manifest), "--state", folder]
        done = subprocess.run(command, cwd=ROOT, check=False)
        seconds = time.monotonic() - started
        state = JobState(Path(folder) / job.metadata.name)
        outcomes = {stage.name: state.stage(stage.name).outcome() for stage in job.spec.stages}
    result: dict[str, Any] = {
        "devices": [dataclasses.asdict(device) for device in devices],
        "assignment": dataclasses.asdict(assignment),
        "exit_code": done.returncode,
        "seconds": seconds,
        "stages": {name: outcome and outcome.model_dump(mode="json") for name, outcome in outcomes.items()},
        "command": "python -m bench.gpu_smoke",
    }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"gpu-smoke: exit code {done.returncode} after {seconds:.0f} s; {RESULTS}")
    return done.returncode


def on_gpu(data: dict[str, Any], vendor: Vendor) -> dict[str, Any]:
    """Return the manifest with one rank and one engine on GPUs of the vendor."""
    spec = data["spec"]
    arguments = spec["rollout"].get("engineArgs", {})
    rollout = spec["rollout"] | {
        "replicas": 1,
        "tensorParallel": 1,
        "engineArgs": {name: value for name, value in arguments.items() if name not in CPU_ARGUMENTS},
    }
    trainer = spec["trainer"] | {"replicas": 1, "gpusPerReplica": 1}
    accelerator = {"vendor": vendor, "resource": GPU_RESOURCES[vendor]}
    return data | {"spec": spec | {"accelerator": accelerator, "trainer": trainer, "rollout": rollout}}


if __name__ == "__main__":
    sys.exit(main())
