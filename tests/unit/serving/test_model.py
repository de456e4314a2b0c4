"""Which model is meant, and the settings that it is served with."""

import json
import shutil
from pathlib import Path

import pytest

from rstar2_train.api.roles import AcceleratorSpec
from rstar2_train.serving.model import ModelNotFound, adjusted, find
from tests.support.engine import JOB, SYSTEM


@pytest.fixture
def jobs(tmp_path: Path, model_folder: Path) -> Path:
    """A job whose stage `rl` has handed on a model, and one that has none yet."""
    spec = JOB["spec"] | {"rollout": {"toolResponseTokens": 64, "engineArgs": {"max-model-len": 320}}}
    for name in ("done", "begun"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "job.json").write_text(json.dumps({"metadata": {"name": name}, "spec": spec}))
    shutil.copytree(model_folder, tmp_path / "done" / "stages" / "rl" / "model")
    return tmp_path


def test_a_folder_is_served_as_it_is(model_folder: Path, tmp_path: Path) -> None:
    served = find(str(model_folder), jobs=tmp_path)
    assert (served.name, served.folder) == (model_folder.name, model_folder.resolve())
    assert (served.source.system_prompt, served.rollout.tool_response_tokens) == (None, 1024)
    assert served.context == served.config["max_position_embeddings"]


@pytest.mark.parametrize("named", ["done", "done/rl", "{jobs}/done", "{jobs}/done/stages/rl/model"])
def test_a_jobs_model_is_served_with_the_jobs_settings(jobs: Path, named: str) -> None:
    served = find(named.format(jobs=jobs), jobs=jobs)
    assert (served.name, served.folder) == ("done/rl", (jobs / "done/stages/rl/model").resolve())
    assert (served.source.system_prompt, served.rollout.tool_response_tokens) == (SYSTEM, 64)
    assert served.protocol().system_prompt == SYSTEM


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("nobody", "nobody: no such model"),
        ("begun", "has no trained model yet"),
        ("done/sft", "no model of stage 'sft'; it has: rl"),
    ],
)
def test_a_model_that_is_not_there_is_said(jobs: Path, named: str, words: str) -> None:
    with pytest.raises(ModelNotFound, match=words):
        find(named, jobs=jobs)


@pytest.mark.parametrize("missing", ["tokenizer.json", "model.safetensors"])
def test_a_folder_that_is_not_whole_is_said(jobs: Path, missing: str) -> None:
    folder = jobs / "done/stages/rl/model"
    (folder / missing).unlink()
    with pytest.raises(ModelNotFound, match=r"holds no (tokenizer\.json|\*\.safetensors)"):
        find(str(folder), jobs=jobs)


def test_what_a_person_sets_lies_over_the_jobs_settings(jobs: Path) -> None:
    served = find("done", jobs=jobs)
    changed = adjusted(served, context=100, system_prompt="", tool="jupyter_code", executors=7)
    assert (changed.context, changed.source.system_prompt, changed.executor.replicas) == (100, "", 7)
    assert (changed.rollout.tool, changed.source.prompt_prefix) == ("jupyter_code", served.source.prompt_prefix)
    assert adjusted(served) == served
    with pytest.raises(ModelNotFound, match="--context 100000"):
        adjusted(served, context=100_000)


def test_the_engine_reads_calls_of_other_tools_and_has_the_servers_context(jobs: Path) -> None:
    served = adjusted(find("done", jobs=jobs), context=200, accelerator=AcceleratorSpec.of_vendor("None"))
    argv = served.engine(port=1).argv
    assert argv[argv.index("--max-model-len") + 1] == "200"
    assert argv[argv.index("--tool-call-parser") + 1] == "hermes"
    assert "--enable-auto-tool-choice" in argv
    assert argv[argv.index("--host") + 1] == "127.0.0.1"
