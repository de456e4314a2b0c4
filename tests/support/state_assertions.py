"""What must be true of a job's state folder when it has ended, whatever was killed on the way."""

from __future__ import annotations

from collections import Counter

from rstar2_train.api.state_dir import JobState
from rstar2_train.rollout import trajectory_store
from rstar2_train.tracking import journal
from rstar2_train.tracking.tracker import journal_file
from rstar2_train.trainer import checkpoint


def assert_whole(state: JobState) -> None:
    """Every step's rollouts are all there, none lost, none scored 0 because of a kill."""
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
            assert versions == {f"{name}-step-{step - 1:06d}"}, "sampled under other weights than the step's"
            assert {call.status for row in rows for call in row.calls} <= {"ok", "error", "malformed", "unknown_tool"}
        assert checkpoint.list_checkpoints(state.stage(name).checkpoints)[-1][0] == settings.steps


def steps_done_twice(state: JobState) -> list[tuple[str, int]]:
    """(stage, step) of every step whose figures were told more than once: work that a kill made repeat."""
    told = Counter(
        (str(event["run"]), int(event["step"]))
        for entry in journal.read_entries(journal_file(state.root))
        if (event := entry.event) is not None and "reward/mean" in (event.get("values") or {})
    )
    return sorted(step for step, times in told.items() for _ in range(times - 1))
