"""`rstar2 plan`: its output for a reader and for a script, and its errors."""

import json
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from rstar2_train.api.loader import read_manifest
from rstar2_train.cli.main import main
from rstar2_train.cli.plan import show
from rstar2_train.plan.job_plan import JobPlan
from rstar2_train.plan.row import Row

EXAMPLES = Path(__file__).parents[3] / "examples"
SMOKE = str(EXAMPLES / "smoke.yaml")
LARGE = str(EXAMPLES / "qwen3-14b.yaml")


def test_plan_command_prints_tables_and_sources(capsys: pytest.CaptureFixture[str]) -> None:
    """Every section is printed with a column per stage; assumptions have a source."""
    assert main(["plan", SMOKE, "--explain"]) == 0
    printed = capsys.readouterr().out
    for text in ("Trainer, per rank", "Engine, per device", "Judge", "Storage", "Assumptions", "Arithmetic of"):
        assert text in printed
    assert "4 x 525,568 parameters / 1" in printed


@pytest.mark.parametrize("width", [40, 60, 200])
def test_plan_tables_show_each_figure_at_any_width(width: int) -> None:
    """A narrow terminal shows the stages in several tables; no figure and no label is cut."""
    label = "tokens that the cache of an engine holds"
    rows = {f"rl-{at}": [Row("Engine", "kv", label, "count", 26_158_590 + at)] for at in range(6)}
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        show(JobPlan("job", "small", rows, [], []), console, explain=False)
    printed = capture.get()
    assert "…" not in printed and max(map(len, printed.splitlines())) <= width
    assert all(f"26,158,59{at}" in printed and f"rl-{at}" in printed for at in range(6))
    assert set(label.split()) <= set(printed.split())


def test_plan_command_json_has_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    """Scripts get bytes and seconds as numbers."""
    assert main(["plan", SMOKE, "-o", "json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["fits"] is True
    stage = next(rows for rows in plan["stages"].values() if "stepSeconds" in rows and "slots" in rows)
    assert stage["weights"] == 4 * 525_568 and stage["stepSeconds"] > 0


def test_plan_command_model_folder_replaces_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--model gives the shape of a model that no table has; a job too large for the machine exits with 1."""
    config = {"num_hidden_layers": 96, "hidden_size": 12288, "intermediate_size": 49152, "num_attention_heads": 96}
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": 50000, "architectures": ["C"]}))
    assert main(["plan", SMOKE, "--model", str(tmp_path)]) == 1
    assert "error: spec." in capsys.readouterr().out


def test_plan_command_reads_the_headers_of_the_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder whose weights no run would load has no plan: torn files, and another format than config.json."""
    sizes = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
    config = sizes | {"vocab_size": 500, "dtype": "bfloat16", "architectures": ["C"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["plan", SMOKE, "--model", str(tmp_path)]) == 0
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    file = tmp_path / "model.safetensors"
    for content, message in ((bytes(4), "dtype: 'bfloat16', but w is stored as float32"), (b"", "its header")):
        file.write_bytes(len(header).to_bytes(8, "little") + header + content)
        assert main(["plan", SMOKE, "--model", str(tmp_path)]) == 1
        assert message in capsys.readouterr().err


def test_plan_command_divides_the_gpus_of_one_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One GPU is shared at the same time, or time-shared if the trainer needs most of it; two GPUs are not shared."""
    data = read_manifest(Path(LARGE))
    spec = data["spec"]
    spec["model"]["source"] = "hf://Qwen/Qwen3-4B"
    spec["accelerator"] = {"vendor": "NVIDIA", "resource": "nvidia.com/gpu"}
    spec["trainer"] |= {"replicas": 1, "gpusPerReplica": 1}
    spec["rollout"] |= {"replicas": 1, "tensorParallel": 1}
    spec["grpo"] |= {"promptsPerStep": 8, "rolloutsPerPrompt": 8, "keepPerPrompt": 4}
    spec["stages"] = [stage for stage in spec["stages"] if stage["name"] in ("sft", "rl-8k")]
    file = tmp_path / "job.yaml"
    summaries = []
    for gpus, tokens in (("2", 32768), ("1", 32768), ("1", 65536)):
        spec["trainer"]["tokensPerMicroBatch"] = tokens
        file.write_text(yaml.safe_dump(data))
        assert main(["plan", str(file), "--hardware", "h200", "--gpus", gpus, "-o", "json"]) == 0
        plan = json.loads(capsys.readouterr().out)
        assert ("deviceBytes" in plan["stages"]["rl-8k"]) == (gpus == "1")
        summaries.append(plan["summary"])
    assert "2 x NVIDIA H200 SXM: trainer 1, engines 1" in summaries[0]
    assert "trainer and engine use at the same time" in summaries[1]
    assert "trainer and engine use by time-sharing" in summaries[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.yaml"], "missing.yaml"),
        ([SMOKE, "--hardware", "gtx"], "neither a hardware profile"),
        ([SMOKE, "--hardware", "h100"], "does not suit spec.accelerator.vendor None"),
        ([SMOKE, "--model", "/nowhere"], "--model /nowhere: no such folder"),
        ([SMOKE, "--gpus", "1"], "spec.accelerator.vendor is None, so the job uses no GPU"),
        ([LARGE, "--gpus", "8"], "this machine has 8 devices, but the job needs spec.trainer 24"),
    ],
)
def test_plan_command_error_names_the_cause(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error is one line on stderr with exit code 1."""
    assert main(["plan", *arguments]) == 1
    assert message in capsys.readouterr().err
