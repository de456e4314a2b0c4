"""Plans of `rstar2 eval` and `rstar2 filter`: limits, settings, errors before anything starts."""

import json
from pathlib import Path
from typing import Any

import pytest

from rstar2_train.api.stages import Sampling
from rstar2_train.capacity.fit import longest_sequence
from rstar2_train.data.tiny.policy import write_policy
from rstar2_train.launch.evaluation.evaluate import PreparedEvaluation, prepare_evaluation
from rstar2_train.launch.evaluation.filter import PreparedFilter, kept_path, prepare_filter, report_path
from rstar2_train.launch.evaluation.one_stage_job import EvalRequest
from rstar2_train.launch.evaluation.settings import fit
from rstar2_train.launch.local.devices import vendor
from rstar2_train.launch.local.preflight import PreflightError, read_job
from rstar2_train.launch.local.services import RunningServices

TINY = Path(__file__).parents[4] / "examples" / "tiny.yaml"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny policy with a context of 2048 tokens."""
    folder = tmp_path_factory.mktemp("model") / "policy"
    write_policy(folder, texts=["Find the sum of 12 and 30. Tool: execute_python_code_with_standard_io"] * 50, seed=0)
    config = json.loads((folder / "config.json").read_text()) | {"max_position_embeddings": 2048}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def benchmark(tmp_path: Path) -> Path:
    file = tmp_path / "sums.jsonl"
    rows = [{"id": n, "problem": "Find the sum of 12 and 30." + " 30" * n, "answer": 42} for n in range(3)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def request(model: Path, state: Path, **changes: Any) -> EvalRequest:
    options = {
        "model": str(model), "running": RunningServices(), "tokenizer": None, "manifest": TINY, "settings": {},
        "accelerator": None, "state": state,
    }  # fmt: skip
    return EvalRequest(**(options | changes))


def prepared(model: Path, benchmark: Path, **changes: Any) -> PreparedEvaluation:
    names = changes.pop("benchmarks", [str(benchmark)])
    return prepare_evaluation(request(model, benchmark.parent, **changes), names, data=Path())


def filtering(model: Path, problems: Path, **changes: Any) -> PreparedFilter:
    return prepare_filter(request(model, problems.parent, **changes), problems)


def test_evaluation_options_replace_the_manifests_settings(model: Path, benchmark: Path) -> None:
    """Settings come from the command line, else from the manifest's last Evaluate stage."""
    evaluation = prepared(model, benchmark)
    default = evaluation.measurement
    assert default.samples == 1
    assert default.sampling == Sampling(temperature=0.6, max_response_tokens=200, max_turns=10)
    assert default.job.spec.accelerator.vendor == "None" and default.job.spec.model.source == str(model)
    assert [problem.id for problem in default.problems] == ["sums/0", "sums/1", "sums/2"]
    assert set(evaluation.benchmarks.values()) == {"sums"} and default.note == ""
    changed = prepared(
        model, benchmark, settings={"samples": 5, "temperature": 0.0, "seed": 3}, accelerator="AMD"
    ).measurement
    assert (changed.samples, changed.sampling.temperature, changed.settings["seed"]) == (5, 0.0, 3)
    assert changed.sampling.max_turns == 10 and changed.job.spec.accelerator.vendor == "AMD"
    longest = max(map(len, default.prompts.values()))
    assert longest_sequence(default.job) == longest + 200


def test_filter_options_replace_the_manifests_settings(model: Path, benchmark: Path) -> None:
    """Settings come from the command line, else from the manifest's last Filter stage."""
    default = filtering(model, benchmark)
    stage = next(stage.filter for stage in read_job(TINY)[0].spec.stages if stage.filter is not None)
    assert (default.measurement.samples, default.drop_solved, default.measurement.sampling) == (8, 8, stage.sampling)
    assert [problem.id for problem in default.measurement.problems] == ["0", "1", "2"]  # they seed the samples
    assert (default.measurement.settings["seed"], default.measurement.settings["seed_name"]) == (0, "filter")
    changed = filtering(model, benchmark, settings={"samples": 4, "drop_solved": 3, "max_turns": 2})
    assert (changed.measurement.samples, changed.drop_solved, changed.measurement.sampling.max_turns) == (4, 3, 2)
    assert changed.measurement.sampling.temperature == stage.sampling.temperature
    written = changed.measurement.job.spec.stages[0].filter
    assert written is not None and (written.samples, written.data) == (4, str(benchmark))
    assert longest_sequence(changed.measurement.job) == max(map(len, default.measurement.prompts.values())) + 160


def test_plan_without_manifest_fits_the_papers_settings(model: Path, benchmark: Path) -> None:
    """The paper's response budget is lowered to the context of the model."""
    long = benchmark.with_name("long.jsonl")
    long.write_text(json.dumps({"problem": "sum", "answer": "1"}))
    evaluation = prepared(model, long, manifest=None).measurement
    prompt = len(evaluation.prompts["long/long-1"])
    sampling = evaluation.sampling
    assert (evaluation.samples, sampling.temperature, sampling.max_turns) == (16, 0.6, 30)
    assert sampling.max_response_tokens == 2048 - prompt
    assert f"limited to {2048 - prompt} tokens instead of 30720: the context of the model is 2048" in evaluation.note
    other = filtering(model, long, manifest=None)
    assert (other.measurement.samples, other.drop_solved, other.measurement.sampling.temperature) == (8, 8, 1.0)
    assert other.measurement.sampling.max_turns == 10 and "instead of 8192" in other.measurement.note


def test_samples_of_other_settings_have_their_own_folder(model: Path, benchmark: Path, tmp_path: Path) -> None:
    """More samples use the same folder; another seed, temperature or model does not."""
    first = prepared(model, benchmark)
    assert prepared(model, benchmark, settings={"samples": 9}).measurement.state.root == first.measurement.state.root
    assert prepared(model, benchmark, settings={"samples": 9}).out != first.out
    assert prepared(model, benchmark, settings={"seed": 1}).measurement.state.root != first.measurement.state.root
    assert (
        prepared(model, benchmark, settings={"temperature": 1.0}).measurement.state.root != first.measurement.state.root
    )
    other_model = tmp_path / "other_model"
    write_policy(other_model, texts=["Find the sum of 12 and 30."] * 50, seed=1)
    assert prepared(other_model, benchmark).measurement.settings["model"] != first.measurement.settings["model"]


def test_filter_drop_solved_does_not_change_the_samples(model: Path, benchmark: Path) -> None:
    """Another threshold uses the existing samples and writes another result."""
    eight, five = (filtering(model, benchmark, settings={"drop_solved": drop}) for drop in (8, 5))
    assert eight.measurement.state.root == five.measurement.state.root and eight.out != five.out
    evaluation = prepared(model, benchmark, settings=eight.measurement.sampling.model_dump(by_alias=False)).measurement
    assert evaluation.sampling == eight.measurement.sampling
    assert evaluation.settings != eight.measurement.settings, "an evaluation draws other random numbers"


@pytest.mark.parametrize(
    ("given", "kept", "report"),
    [
        (None, "state/kept.jsonl", "state/kept.report.json"),
        ("harder.jsonl", "harder.jsonl", "harder.report.json"),
        ("some/folder", "some/folder/kept.jsonl", "some/folder/kept.report.json"),
    ],
)
def test_kept_path_follows_out(given: str | None, kept: str, report: str) -> None:
    """--out is a file if it ends in .jsonl, else a folder."""
    path = kept_path(Path(given) if given else None, default=Path("state/kept.jsonl"))
    assert (path, report_path(path)) == (Path(kept), Path(report))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"drop_solved": 9}, "--drop-solved 9 drops no problem: there are only 8 samples"),
        ({"samples": 4}, "only 4 samples per problem. Pass --drop-solved 4 or less"),
        ({"samples": 2000}, "samples: 2000: .* less than or equal to 1024"),
    ],
)
def test_filter_that_drops_nothing_is_rejected(
    model: Path, benchmark: Path, settings: dict[str, Any], message: str
) -> None:
    """The threshold must be at most the number of samples."""
    with pytest.raises(PreflightError, match=message):
        filtering(model, benchmark, settings=settings)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "problems.jsonl: the file has no rows"),
        ([{"id": 1, "problem": "a", "answer": 1}] * 2, "problems.jsonl:2: duplicate id '1', first used in line 1"),
        ([{"problem": "a"}], "problems.jsonl:1: answer must be a non-empty text"),
    ],
)
def test_filter_invalid_problem_is_named_by_line(model: Path, tmp_path: Path, lines: list[dict], message: str) -> None:
    """The message has the file, the line and the cause."""
    file = tmp_path / "problems.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(PreflightError, match=message):
        filtering(model, file)


def test_fit_limits_the_budget_to_the_context() -> None:
    """A prompt that fills the context is an error."""
    sampling = Sampling(max_response_tokens=100)
    assert fit(sampling, prompt=20, problem="p", context=120) == (sampling, "")
    assert fit(sampling, prompt=20, problem="p", context=None) == (sampling, "")
    clipped, note = fit(sampling, prompt=20, problem="p", context=119)
    assert clipped.max_response_tokens == 99 and "(problem p) has 20" in note
    with pytest.raises(PreflightError, match="prompt of problem p has 20 tokens, but the context of the model only 20"):
        fit(sampling, prompt=20, problem="p", context=20)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "/nowhere"}, "/nowhere: no such folder. Download Hub models first"),
        (
            {"model": str(TINY.parent)},
            "examples is not a model in the Hugging Face format: it has no config.json",
        ),
        ({"benchmarks": ["nothing"]}, "'nothing': no such file"),
        ({"manifest": Path("nothing.yaml")}, r"nothing\.yaml"),
        ({"settings": {"temperature": 3.0}}, "temperature: 3.0: .* less than or equal to 2"),
        ({"running": RunningServices("http://127.0.0.1:1")}, "--endpoint http://127.0.0.1:1: .*Cannot connect"),
        ({"tokenizer": Path("/nowhere")}, "/nowhere: the tokenizer cannot be used"),
    ],
)
def test_plan_invalid_option_fails_without_files(
    model: Path, benchmark: Path, changes: dict[str, Any], message: str
) -> None:
    """Nothing is written before all options are valid."""
    before = sorted(benchmark.parent.iterdir())
    with pytest.raises(PreflightError, match=message):
        prepared(changes.pop("model", model), benchmark, **changes)
    assert sorted(benchmark.parent.iterdir()) == before


def test_plan_too_many_benchmarks_is_rejected(model: Path, benchmark: Path) -> None:
    """The limit is that of an Evaluate stage."""
    with pytest.raises(PreflightError, match="--benchmark: List should have at most 32 items"):
        prepared(model, benchmark, benchmarks=[f"b{number}={benchmark}" for number in range(33)])


def test_vendor_follows_the_device_files(tmp_path: Path) -> None:
    """NVIDIA takes precedence over AMD."""
    assert vendor(tmp_path) == "None"
    (tmp_path / "kfd").touch()
    assert vendor(tmp_path) == "AMD"
    (tmp_path / "nvidiactl").touch()
    assert vendor(tmp_path) == "NVIDIA"
