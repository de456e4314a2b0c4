"""Assertions on the state directory of a finished job, which hold after any kill."""

from __future__ import annotations

from collections import Counter

from rstar2_train.api.state_dir import JobState
from rstar2_train.rollout import trajectory_store
from rstar2_train.tracking import journal
from rstar2_train.tracking.tracker import journal_file
from rstar2_train.trainer import checkpoint


def assert_complete(state: JobState) -> None:
    """Assert that the rollouts of every step are stored, and that no kill lost one or changed its score."""
    job = state.job()
    for name in (stage.name for stage in job.spec.stages if stage.type == "GRPO"):
        settings = job.grpo_settings(job.stage(name))
        problems = settings.prompts_per_step
        for step in range(1, settings.steps + 1):
            rows = trajectory_store.read(trajectory_store.step_path(state.stage(name).trajectories, step))
            groups = Counter(row.prompt_id for row in rows)
            assert set(groups.values()) == {settings.rollouts_per_prompt}
            assert len(groups) <= problems
            assert [row.error for row in rows if row.failed] == []
            versions = {segment.weight_version for row in rows for segment in row.segments if segment.kind == "model"}
            assert versions == {f"{name}-step-{step - 1:06d}"}, "sampled with the weights of another step"
            assert {call.status for row in rows for call in row.calls} <= {"ok", "error", "malformed", "unknown_tool"}
        assert checkpoint.list_checkpoints(state.stage(name).checkpoints)[-1][0] == settings.steps


def steps_done_twice(state: JobState) -> list[tuple[str, int]]:
    """Return (stage, step) of every step that a kill caused to run again, once per repetition."""
    runs = Counter(
        (str(event["run"]), int(event["step"]))
        for entry in journal.read_entries(journal_file(state.root))
        if (event := entry.event) is not None and "reward/mean" in (event.get("values") or {})
    )
    return sorted(step for step, count in runs.items() for _ in range(count - 1))
