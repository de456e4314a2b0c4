"""`make gpu-kit`: the trainer on the first GPU, in at most eight minutes, with torch and transformers only.

No vLLM, no Ray, no installation: `python3 -m bench.gpu_kit` in the root of a clone, with torch from 2.11 on,
transformers from 5.17 on, safetensors and NumPy. Each check runs in a process of its
own (`bench/gpu_kit_checks.py`), so that a failure, or a device that hangs, does not stop the others. The step also runs
on all GPUs, by torchrun. Writes bench/results/gpu_kit.json, and prints a table with a verdict per check.

`--dry` runs the same code on the CPU with small shapes. `--only NAME ...` selects checks.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results" / "gpu_kit.json"
BUDGET_SECONDS = 470.0
"""Time of all checks; those that it does not suffice for are named."""
LEAST_SECONDS = 20.0
INTERRUPTED = "interrupted"
"""Verdict of a check during which the kit got SIGINT or SIGTERM."""
GRACE_SECONDS = 15.0
"""Time that the processes of a check have to end."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check: a function of `bench.gpu_kit_checks`."""

    name: str
    seconds: float
    """Longest time."""
    arguments: tuple[str, ...] = ()
    all_gpus: bool = False
    """Run one rank per GPU, by torchrun; skipped with one GPU."""

    @property
    def title(self) -> str:
        """Name with its arguments."""
        return " ".join([self.name, *self.arguments, *["on all GPUs"] * self.all_gpus])


CHECKS = (
    Check("machine", 60),
    Check("logits", 60),
    Check("attention", 120),
    Check("families", 60),
    Check("state", 120),
    Check("speed", 150, ("0.6b", "4096")),
    Check("speed", 150, ("0.6b", "12288")),
    Check("speed", 180, ("4b", "12288")),
    Check("speed", 180, ("4b", "4096")),
    Check("speed", 180, ("8b", "12288")),
    Check("speed", 150, ("0.6b", "12288"), all_gpus=True),
)
"""In the order of their worth: the last ones may find no time."""


def main() -> int:
    """Run all checks; return 0 if none failed."""
    parser = argparse.ArgumentParser(prog="gpu-kit", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--dry", action="store_true", help="on the CPU, with small shapes")
    names = sorted({check.name for check in CHECKS})
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=f"run these: {', '.join(names)}")
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="FILE", help=f"default: {RESULTS}")
    options = parser.parse_args()
    try:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.open("a").close()
    except OSError as error:
        parser.error(f"{options.output}: cannot be written: {error.strerror}: set --output to another file")
    started = time.monotonic()
    rows: list[dict[str, Any]] = []
    # A time limit of another program ends the processes of the check, and leaves table and file whole.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    for check in (check for check in CHECKS if not options.only or check.name in options.only):
        row = {"check": check.title} | attempt(check, rows, dry=options.dry, started=started)
        print(line(row), flush=True)
        rows.append(row)
        options.output.write_text(
            json.dumps({"command": "make gpu-kit", "dry": options.dry, "checks": rows}, indent=1) + "\n"
        )
    print(f"\n{len(rows)} checks in {time.monotonic() - started:.0f} s: {options.output}")
    return summarise(rows)


def attempt(check: Check, rows: list[dict[str, Any]], *, dry: bool, started: float) -> dict[str, Any]:
    """Run a check if there is time, and none was interrupted before; return its row without its name."""
    left = BUDGET_SECONDS - (time.monotonic() - started)
    if left <= LEAST_SECONDS:
        return {"verdict": "no time left"}
    if any(row["verdict"] == INTERRUPTED for row in rows):
        return {"verdict": "not run"}
    try:
        return run(check, dry=dry, seconds=min(check.seconds, left))
    except KeyboardInterrupt:
        return {"verdict": INTERRUPTED}


def summarise(rows: list[dict[str, Any]]) -> int:
    """Print the checks that failed and those that did not run; return the exit code."""
    failed = [row["check"] for row in rows if row["verdict"] in ("fail", INTERRUPTED)]
    missing = [row["check"] for row in rows if row["verdict"] in ("no time left", "not run")]
    print(f"failed: {', '.join(failed)}" if failed else "none failed")
    if missing:
        print(f"not run: {', '.join(missing)}; run them with --only")
    return 1 if failed else 0


def run(check: Check, *, dry: bool, seconds: float) -> dict[str, Any]:
    """Run a check in a process of its own; return its figures with `verdict` and `seconds`."""
    count = 2 if dry else visible_gpus()
    if check.all_gpus and count < 2:
        return {"verdict": "skipped", "reason": f"{count} GPU"}
    program = ["-m", "bench.gpu_kit_checks", check.name, *check.arguments, *["--dry"] * dry]
    ranks = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"] if check.all_gpus else []
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gpu-kit-") as folder:
        output = Path(folder) / "result.json"
        environment = os.environ | {"GPU_KIT_OUTPUT": str(output), "PYTHONPATH": str(ROOT)}
        errors_file = Path(folder) / "stderr"
        status = finish([sys.executable, *ranks, *program], environment, errors_file, seconds=seconds)
        errors = errors_file.read_text(errors="replace")
        figures = read_figures(output) or {"verdict": "fail", "error": status}
    if figures["verdict"] == "fail":
        figures["stderr"] = errors[-3000:]
    return figures | {"seconds": round(time.monotonic() - started, 1)}


def read_figures(output: Path) -> dict[str, Any]:
    """Return the figures that a check wrote; empty if it ended before."""
    try:
        figures: dict[str, Any] = json.loads(output.read_text())
    except (OSError, ValueError):
        return {}
    return figures


def finish(command: list[str], environment: dict[str, str], errors: Path, *, seconds: float) -> str:
    """Run a command and return how it ended. `errors`: the file of its stderr; `seconds`: its longest time.

    Its own processes end with it: the ranks of a torchrun that is killed, or compilers, would keep memory of the GPUs.
    """
    with errors.open("w") as stream:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=stream, start_new_session=True
        )
        try:
            return f"exit code {process.wait(seconds)}"
        except subprocess.TimeoutExpired:
            return f"no result after {seconds:.0f} s"
        finally:
            # torchrun ends its ranks, which are in groups of their own, at SIGTERM only.
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                    os.killpg(process.pid, number)
                    process.wait(GRACE_SECONDS)


def visible_gpus() -> int:
    """Return the number of GPUs, asked in another process: this one must not hold memory on a device."""
    code = "import torch; print(torch.cuda.device_count())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return int(done.stdout.strip() or 0) if done.returncode == 0 else 0


def line(row: dict[str, Any]) -> str:
    """Return a row of the table: verdict, check, time and the main figures."""
    hidden = {"check", "verdict", "seconds", "stderr", "traceback"}
    figures = ", ".join(f"{name} {short(value)}" for name, value in row.items() if name not in hidden)
    return f"{row['verdict']:12s} {row['check']:28s} {row.get('seconds', 0):6.1f} s  {figures}"


def short(value: Any) -> str:
    """Return a figure with three digits."""
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} {short(each)}" for name, each in value.items()) + "}"
    return str(value)


if __name__ == "__main__":
    sys.exit(main())
