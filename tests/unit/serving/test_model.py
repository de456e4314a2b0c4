"""The model that the user names, and its settings."""

import json
import shutil
from pathlib import Path

import pytest

from rstar2_train.api.roles import AcceleratorSpec
from rstar2_train.launch.model_folder import ModelNotFound
from rstar2_train.serving.model import adjusted, find
from tests.support.engine import JOB, SYSTEM


@pytest.fixture
def jobs(tmp_path: Path, model_folder: Path) -> Path:
    """The job `done`, whose stage `rl` has a model, and the job `new` without a model."""
    spec = JOB["spec"] | {"rollout": {"toolResponseTokens": 64, "engineArgs": {"max-model-len": 320}}}
    for name in ("done", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "job.json").write_text(json.dumps({"metadata": {"name": name}, "spec": spec}))
    shutil.copytree(model_folder, tmp_path / "done" / "stages" / "rl" / "model")
    return tmp_path


def test_find_folder_has_default_settings(model_folder: Path, tmp_path: Path) -> None:
    """A model folder outside a job has the built-in prompts and default limits."""
    served = find(str(model_folder), jobs=tmp_path)
    assert (served.name, served.folder) == (model_folder.name, model_folder.resolve())
    assert (served.source.system_prompt, served.rollout.tool_response_tokens) == (None, 1024)
    assert served.context == served.config["max_position_embeddings"]


@pytest.mark.parametrize("named", ["done", "done/rl", "{jobs}/done", "{jobs}/done/stages/rl/model"])
def test_find_job_has_the_jobs_settings(jobs: Path, named: str) -> None:
    """A job, its stage, or the folder of its model: all get the job's settings."""
    served = find(named.format(jobs=jobs), jobs=jobs)
    assert (served.name, served.folder) == ("done/rl", (jobs / "done/stages/rl/model").resolve())
    assert (served.source.system_prompt, served.rollout.tool_response_tokens) == (SYSTEM, 64)
    assert served.chat_format().system_prompt == SYSTEM


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("nobody", "nobody: no such model"),
        ("new", "has no trained model yet"),
        ("done/sft", "no model of stage 'sft'. Stages with a model: rl"),
    ],
)
def test_find_unknown_model_fails(jobs: Path, named: str, message: str) -> None:
    """The message names what exists instead."""
    with pytest.raises(ModelNotFound, match=message):
        find(named, jobs=jobs)


@pytest.mark.parametrize("missing", ["tokenizer.json", "model.safetensors"])
def test_find_incomplete_folder_fails(jobs: Path, missing: str) -> None:
    """The message names the missing files."""
    folder = jobs / "done/stages/rl/model"
    (folder / missing).unlink()
    with pytest.raises(ModelNotFound, match=r"it has no (tokenizer\.json|\*\.safetensors)"):
        find(str(folder), jobs=jobs)


def test_adjusted_options_replace_the_jobs_settings(jobs: Path) -> None:
    """Only given options change a setting; the context has a limit."""
    served = find("done", jobs=jobs)
    changed = adjusted(served, context=100, system_prompt="", tool="jupyter_code", executors=7)
    assert (changed.context, changed.source.system_prompt, changed.executor.replicas) == (100, "", 7)
    assert (changed.rollout.tool, changed.source.prompt_prefix) == ("jupyter_code", served.source.prompt_prefix)
    assert adjusted(served) == served
    with pytest.raises(ModelNotFound, match="--context 100000"):
        adjusted(served, context=100_000)


def test_engine_parses_tool_calls_within_the_context(jobs: Path) -> None:
    """The engine gets the context of the server and a parser for clients' own tools."""
    served = adjusted(find("done", jobs=jobs), context=200, accelerator=AcceleratorSpec.from_vendor("None"))
    argv = served.engine(port=1).argv
    assert argv[argv.index("--max-model-len") + 1] == "200"
    assert argv[argv.index("--tool-call-parser") + 1] == "hermes"
    assert "--enable-auto-tool-choice" in argv
    (served.folder / "chat_template.jinja").write_text("{{ '[TOOL_CALLS]' }}")
    argv = served.engine(port=1).argv
    assert argv[argv.index("--tool-call-parser") + 1] == "mistral"
    (served.folder / "chat_template.jinja").write_text("{{ '<start_of_turn>' }}")  # vLLM has no parser of its texts
    assert "--tool-call-parser" not in served.engine(port=1).argv
    assert argv[argv.index("--host") + 1] == "127.0.0.1"
