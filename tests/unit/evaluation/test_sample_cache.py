"""The cache of samples: keys cover everything that affects a sample, and torn lines are skipped."""

import random
import resource
import signal
from pathlib import Path

import pyarrow as pa
import pytest

from rstar2_train.data.problems import Problem
from rstar2_train.evaluation.sample_cache import SampleCache, sample_cache_key, trajectory_file
from rstar2_train.evaluation.sample_result import SampleResult
from rstar2_train.evaluation.sampling import SampleRequest
from rstar2_train.evaluation.settings import cache_key
from rstar2_train.rollout import trajectory_store
from rstar2_train.rollout.trajectory import Segment, StopReason, ToolCall, Trajectory
from tests.support.token_arrays import logprob_array, token_array

PROBLEMS = [Problem(id="b/1", problem="1+1", answer="2"), Problem(id="b/2", problem="2+2", answer="4")]
PROMPTS = {"b/1": token_array([1, 2, 3]), "b/2": token_array([1, 2, 4])}
BOTH = SampleRequest(problems=PROBLEMS, prompts=PROMPTS, samples=2)


def sample(problem: Problem, number: int, *, stop: StopReason = "answered") -> Trajectory:
    return Trajectory(
        prompt_id=problem.id,
        sample=number,
        prompt_ids=PROMPTS[problem.id],
        segments=[
            Segment("model", token_array([5, 6]), logprob_array([-0.5, -1.25]), [("w", 0)], 0.25),
            Segment("tool", token_array([7])),
        ],
        calls=[ToolCall(0, "run", "print(1)", "", "ok", "1\n</tool_response>\u2028é", 0.1, 0.2)],
        stop=stop,
        gold=problem.answer,
        verdict="correct",
        answer="2",
        reward=1.0,
    )


def load(path: Path, problems: list[Problem] = PROBLEMS, samples: int = 2, prompts=PROMPTS, with_trajectories=True):
    with SampleCache(path, with_trajectories=with_trajectories) as store:
        return store.load(SampleRequest(problems=problems, prompts=prompts, samples=samples))


def test_load_returns_added_samples(tmp_path: Path) -> None:
    """Added samples are loaded unchanged."""
    path = tmp_path / "deep" / "samples.jsonl"
    rows = [sample(problem, number) for problem in PROBLEMS for number in range(2)]
    with SampleCache(path) as store:
        for row in rows:
            store.add(row)
    assert load(path) == {(row.prompt_id, row.sample): SampleResult.from_trajectory(row) for row in rows}


def test_trajectories_are_in_problem_order(tmp_path: Path) -> None:
    """Trajectories of saved and lost samples are in the order of the problems."""
    early, late = [sample(PROBLEMS[1], 1), sample(PROBLEMS[0], 1)], [sample(PROBLEMS[1], 0)]
    lost = sample(PROBLEMS[0], 0, stop="infrastructure")
    with SampleCache(tmp_path / "s") as store:
        for row in early:
            store.add(row)
    with SampleCache(tmp_path / "s") as store:
        store.load(BOTH)
        for row in (*late, lost):
            assert store.add(row) == SampleResult.from_trajectory(row)
        assert list(store.trajectories()) == [lost, early[1], *late, early[0]]


def test_add_without_trajectories_saves_results_only(tmp_path: Path) -> None:
    """Without trajectories, only the results are saved; a request for trajectories samples them again."""
    for with_trajectories in (True, False):
        path = tmp_path / f"{with_trajectories}"
        row = sample(PROBLEMS[0], 0)
        row.segments[0] = Segment("model", token_array([9] * 5000), logprob_array([-0.123456789] * 5000), [("w", 0)])
        with SampleCache(path, with_trajectories=with_trajectories) as store:
            store.add(row)
        assert load(path, with_trajectories=False) == {("b/1", 0): SampleResult.from_trajectory(row)}
        assert path.stat().st_size < 1000
        assert (trajectory_file(path).stat().st_size > 0) == with_trajectories == bool(load(path))


def test_saved_trajectory_needs_a_third_of_its_json(tmp_path: Path) -> None:
    """Tokens and log-probabilities are stored as in a trajectory file: at most 8 bytes per token, and exactly."""
    numbers = random.Random(0)
    row = sample(PROBLEMS[0], 0)
    ids = token_array([numbers.randrange(150_000) for _ in range(5000)])
    row.segments[0] = Segment("model", ids, logprob_array([-numbers.random() for _ in range(5000)]), [("w", 0)])
    with SampleCache(tmp_path / "s") as store:
        store.load(BOTH)
        store.add(row)
        assert list(store.trajectories()) == [row]
    assert trajectory_file(tmp_path / "s").stat().st_size < 8 * 5000 + 10_000


def test_load_without_trajectory_samples_again(tmp_path: Path) -> None:
    """A result whose trajectory is missing, because its file was removed or cut, is not used."""
    with SampleCache(tmp_path / "s") as store:
        store.add(sample(PROBLEMS[0], 0))
        store.add(sample(PROBLEMS[0], 1))
    file = trajectory_file(tmp_path / "s")
    file.write_bytes(file.read_bytes()[:-1])
    assert list(load(tmp_path / "s")) == [("b/1", 0)]
    # A power failure lost the end of the file, and other samples are in its place since.
    with SampleCache(tmp_path / "s") as store:
        store.load(BOTH)
        store.add(sample(PROBLEMS[1], 0))
        store.add(sample(PROBLEMS[1], 1))
    assert set(load(tmp_path / "s")) == {("b/1", 0), ("b/2", 0), ("b/2", 1)}
    file.unlink()
    assert load(tmp_path / "s") == {}


def test_load_of_another_version_samples_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A result with an unknown field, and a trajectory with an unknown column, are not used."""
    with SampleCache(tmp_path / "s") as store:
        store.add(sample(PROBLEMS[0], 0))
        store.add(sample(PROBLEMS[0], 1))
        monkeypatch.setattr(trajectory_store, "SCHEMA", trajectory_store.SCHEMA.append(pa.field("later", pa.int64())))
        store.add(sample(PROBLEMS[1], 0))
    monkeypatch.undo()
    first, rest = (tmp_path / "s").read_text().split("\n", 1)
    (tmp_path / "s").write_text(first.replace('"scored":{', '"scored":{"later":1,') + "\n" + rest)
    assert '"later"' in (tmp_path / "s").read_text()
    assert set(load(tmp_path / "s")) == {("b/1", 1)}
    assert set(load(tmp_path / "s", with_trajectories=False)) == {("b/1", 1), ("b/2", 0)}


def test_add_on_full_disk_raises_and_keeps_saved_samples(tmp_path: Path) -> None:
    """A limit on the file size simulates the full disk. Saved samples stay readable."""
    with SampleCache(tmp_path / "s") as store:
        store.add(sample(PROBLEMS[0], 0))
        size = trajectory_file(tmp_path / "s").stat().st_size
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, limits[1]))
        try:
            with pytest.raises(OSError, match="only 100 of"):
                store.add(sample(PROBLEMS[0], 1))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, handler)
        store.add(sample(PROBLEMS[1], 0))
    assert set(load(tmp_path / "s")) == {("b/1", 0), ("b/2", 0)}


def test_add_of_lost_sample_does_not_save(tmp_path: Path) -> None:
    """A lost sample is not saved."""
    with SampleCache(tmp_path / "s") as store:
        store.add(sample(PROBLEMS[0], 0, stop="infrastructure"))
        store.add(sample(PROBLEMS[0], 1))
    assert list(load(tmp_path / "s")) == [("b/1", 1)]


def test_load_of_larger_request_returns_saved_samples(tmp_path: Path) -> None:
    """A smaller and a larger request share samples."""
    with SampleCache(tmp_path / "s") as store:
        for number in range(2):
            store.add(sample(PROBLEMS[0], number))
    assert set(load(tmp_path / "s", samples=1)) == {("b/1", 0)}
    assert set(load(tmp_path / "s", samples=9)) == {("b/1", 0), ("b/1", 1)}
    assert load(tmp_path / "s", PROBLEMS[1:]) == {}


@pytest.mark.parametrize(
    ("problem", "prompt"),
    [
        (Problem(id="b/1", problem="1+1", answer="3"), [1, 2, 3]),
        (Problem(id="b/1", problem="1+2", answer="2"), [1, 2, 9]),
        (Problem(id="c/1", problem="1+1", answer="2"), [1, 2, 3]),
    ],
    ids=["answer", "prompt", "id"],
)
def test_load_of_changed_problem_returns_nothing(tmp_path: Path, problem: Problem, prompt: list[int]) -> None:
    """A problem with another answer, prompt or id has no saved samples."""
    with SampleCache(tmp_path / "s") as store:
        store.add(sample(PROBLEMS[0], 0))
    assert load(tmp_path / "s", [problem], prompts={problem.id: prompt}) == {}


def test_load_uses_current_slice_and_hard(tmp_path: Path) -> None:
    """Slice and hard flag come from the current problems."""
    with SampleCache(tmp_path / "s") as store:
        store.add(sample(PROBLEMS[0], 0))
    relabelled = Problem(id="b/1", problem="1+1", answer="2", slice="L7", hard=True)
    result = load(tmp_path / "s", [relabelled])["b/1", 0]
    assert (result.slice, result.hard) == ("L7", True)
    with SampleCache(tmp_path / "s") as store:
        store.load(SampleRequest(problems=[relabelled], prompts=PROMPTS, samples=1))
        (trajectory,) = store.trajectories()
    assert (trajectory.slice, trajectory.hard) == ("L7", True)


@pytest.mark.parametrize("cut", [2, 40, 200])
def test_load_after_torn_line_skips_only_that_sample(tmp_path: Path, cut: int) -> None:
    """A line that `kill -9` tore is skipped, and later samples are readable."""
    path = tmp_path / "s"
    with SampleCache(path) as store:
        store.add(sample(PROBLEMS[0], 0))
        store.add(sample(PROBLEMS[0], 1))
    path.write_bytes(path.read_bytes()[:-cut])
    with SampleCache(path) as store:
        assert set(store.load(BOTH)) == {("b/1", 0)}
        store.add(sample(PROBLEMS[1], 0))
        assert set(store.load(BOTH)) == {("b/1", 0), ("b/2", 0)}


def test_cache_keys_cover_all_inputs() -> None:
    """Keys differ if any input differs, but not by the order of the settings."""
    settings = {"model": "m", "temperature": 0.6, "tool_limits": {"wall_seconds": 4.0}}
    assert cache_key(settings) == cache_key(dict(reversed(settings.items())))
    others = [settings | {"temperature": 0.7}, settings | {"model": "n"}, settings | {"tool_limits": {}}]
    assert len({cache_key(variant) for variant in (settings, *others)}) == 4
    names = {sample_cache_key(i, ids, g, n) for i in "ab" for ids in ([1], [1, 2]) for g in "xy" for n in (0, 1)}
    assert len(names) == 16
