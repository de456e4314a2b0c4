"""`rstar2 plan`: its output for a reader and for a script, and its errors."""

import json
from pathlib import Path

import pytest

from rstar2_train.cli.main import main

EXAMPLES = Path(__file__).parents[3] / "examples"
SMOKE = str(EXAMPLES / "smoke.yaml")


def test_plan_command_prints_tables_and_sources(capsys: pytest.CaptureFixture[str]) -> None:
    """Every section is printed with a column per stage; assumptions have a source."""
    assert main(["plan", SMOKE, "--explain"]) == 0
    printed = capsys.readouterr().out
    for text in ("Trainer, per rank", "Engine, per device", "Judge", "Storage", "Assumptions", "Arithmetic of"):
        assert text in printed
    assert "4 x 525,568 parameters / 1" in printed


def test_plan_command_json_has_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    """Scripts get bytes and seconds as numbers."""
    assert main(["plan", SMOKE, "-o", "json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["fits"] is True
    stage = next(rows for rows in plan["stages"].values() if "stepSeconds" in rows and "slots" in rows)
    assert stage["weights"] == 4 * 525_568 and stage["stepSeconds"] > 0


def test_plan_command_model_folder_replaces_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--model gives the shape of a model that no table has; a job too large for the machine exits with 1."""
    config = {"num_hidden_layers": 96, "hidden_size": 12288, "intermediate_size": 49152}
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_attention_heads": 96, "vocab_size": 50000}))
    assert main(["plan", SMOKE, "--model", str(tmp_path)]) == 1
    assert "error: spec." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.yaml"], "missing.yaml"),
        ([SMOKE, "--hardware", "gtx"], "neither a hardware profile"),
        ([SMOKE, "--hardware", "h100"], "does not suit spec.accelerator.vendor None"),
        ([SMOKE, "--model", "/nowhere"], "config.json cannot be used"),
    ],
)
def test_plan_command_error_names_the_cause(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error is one line on stderr with exit code 1."""
    assert main(["plan", *arguments]) == 1
    assert message in capsys.readouterr().err
