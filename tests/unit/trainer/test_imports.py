"""The orchestrator's side of the trainer needs no torch; only the ranks import it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench import gpu_kit


def test_trainer_group_imports_no_torch() -> None:
    """The orchestrator imports TrainerGroup without torch, transformers and Ray, which need seconds to load."""
    code = "import sys, rstar2_train.trainer.trainer_group\n"
    code += "print(sorted({'torch', 'transformers', 'ray'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_gpu_kit_needs_only_torch_and_transformers(tmp_path: Path) -> None:
    """The kit runs where nothing is installed: the small package under the ranks needs neither Ray nor pydantic."""
    code = (
        "import sys\n"
        "for name in ('ray', 'vllm', 'pydantic', 'psutil', 'pyarrow', 'aiohttp', 'mlflow', 'kopf'):\n"
        "    sys.modules[name] = None\n"
        "sys.argv = ['gpu_kit_checks', 'logits', '--dry']\n"
        "from bench import gpu_kit, gpu_kit_checks\n"
        "assert gpu_kit_checks.main() == 0\n"
    )
    output = tmp_path / "result.json"
    environment = os.environ | {"GPU_KIT_OUTPUT": str(output), "GLOO_SOCKET_IFNAME": "lo"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, cwd=Path(__file__).parents[3])
    assert json.loads(output.read_text())["verdict"] == "pass"


def test_gpu_kit_ends_the_processes_of_a_check(tmp_path: Path) -> None:
    """A check that takes too long leaves none of its processes: they would hold memory of the GPUs."""
    errors = tmp_path / "stderr"
    command = ["sh", "-c", "sleep 60 & echo $! >&2; wait"]
    assert gpu_kit.finish(command, dict(os.environ), errors, seconds=2) == "no result after 2 s"
    status = Path(f"/proc/{errors.read_text().strip()}/status")
    assert not status.exists() or "State:\tZ" in status.read_text()


@pytest.mark.parametrize("names", [["speeds"], ["speed", "x"]])
def test_gpu_kit_refuses_an_unknown_check(names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A run without checks would report that none failed."""
    monkeypatch.setattr(sys, "argv", ["gpu-kit", "--dry", "--only", *names])
    with pytest.raises(SystemExit, match="2"):
        gpu_kit.main()


def test_gpu_kit_names_the_checks_after_a_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A time limit of another program leaves a whole table and file, in which each check has a verdict."""
    verdicts = iter([{"verdict": "pass"}, {"verdict": "fail", "error": "x"}, KeyboardInterrupt])

    def run(check: gpu_kit.Check, **_: object) -> dict[str, object]:
        figures = next(verdicts)
        if isinstance(figures, dict):
            return figures
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
        raise AssertionError

    output = tmp_path / "new" / "kit.json"
    monkeypatch.setattr(gpu_kit, "run", run)
    monkeypatch.setattr(sys, "argv", ["gpu-kit", "--dry", "--output", str(output)])
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert gpu_kit.main() == 1
    finally:
        signal.signal(signal.SIGTERM, before)
    rows = {row["check"]: row["verdict"] for row in json.loads(output.read_text())["checks"]}
    assert list(rows) == [check.title for check in gpu_kit.CHECKS]
    assert list(rows.values())[:4] == ["pass", "fail", "interrupted", "not run"]
    text = capsys.readouterr().out
    assert "failed: logits, attention\n" in text and "not run: families, state, speed 0.6b 4096" in text


@pytest.mark.parametrize("content", [None, "", '{"verdict": "pa'])
def test_gpu_kit_check_without_whole_figures_has_none(content: str | None, tmp_path: Path) -> None:
    """A check that is ended while it writes them has failed, and the others run."""
    if content is not None:
        (tmp_path / "result.json").write_text(content)
    assert gpu_kit.read_figures(tmp_path / "result.json") == {}


def test_gpu_kit_refuses_a_file_that_it_cannot_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the first check, not after it."""
    monkeypatch.setattr(sys, "argv", ["gpu-kit", "--dry", "--output", str(tmp_path)])
    with pytest.raises(SystemExit, match="2"):
        gpu_kit.main()
    assert "cannot be written: Is a directory: set --output to another file" in capsys.readouterr().err
