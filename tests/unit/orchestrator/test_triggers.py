"""Advance triggers and collapse detection, on constructed histories."""

from rstar2_train.api.stages import AdvanceTrigger, CollapseTrigger
from rstar2_train.orchestrator.triggers import StepRecord, end_reason, has_collapsed, is_off_policy

OFF = CollapseTrigger(enabled=False)


def sizes(*values: float | None) -> list[StepRecord]:
    return [StepRecord(i + 1, 0.5, 0.0, 0.0, effective_sample_size=value) for i, value in enumerate(values)]


def history(*, reward=(), truncated=(), all_correct=()) -> list[StepRecord]:
    count = max(len(reward), len(truncated), len(all_correct))
    pad = lambda values: list(values) or [0.0] * count  # noqa: E731
    rows = zip(pad(reward), pad(truncated), pad(all_correct), strict=True)
    return [StepRecord(i + 1, r, t, a) for i, (r, t, a) in enumerate(rows)]


def test_end_reason_without_triggers_is_none() -> None:
    """A stage without triggers runs all its steps."""
    assert end_reason(history(all_correct=[1.0] * 50), advance=AdvanceTrigger(), collapse=OFF) is None


def test_end_reason_all_correct_needs_the_whole_window() -> None:
    """`allCorrectAbove` must hold in every step of the window."""
    advance = AdvanceTrigger(all_correct_above=0.7, window_steps=3)
    assert end_reason(history(all_correct=[0.1, 0.8, 0.8]), advance=advance, collapse=OFF) is None
    assert end_reason(history(all_correct=[0.1, 0.8, 0.8, 0.71]), advance=advance, collapse=OFF) == "AllCorrect"
    assert end_reason(history(all_correct=[0.8, 0.7, 0.8]), advance=advance, collapse=OFF) is None


def test_end_reason_truncation_must_be_low_and_settled() -> None:
    """A low truncation ratio that still changes, or a settled one that is high, does not finish the stage."""
    advance = AdvanceTrigger(truncation_below=0.1, window_steps=3)
    settled = history(truncated=[0.5, 0.11, 0.09, 0.10])
    low_only = history(truncated=[0.2, 0.02, 0.02])
    settled_only = history(truncated=[0.3, 0.3, 0.3])
    assert end_reason(settled, advance=advance, collapse=OFF) == "TruncationSettled"
    assert end_reason(low_only, advance=advance, collapse=OFF) is None
    assert end_reason(settled_only, advance=advance, collapse=OFF) is None


def test_end_reason_waits_for_min_steps() -> None:
    """No trigger finishes the stage before `minSteps`."""
    advance = AdvanceTrigger(all_correct_above=0.5, window_steps=2, min_steps=5)
    assert end_reason(history(all_correct=[0.9] * 4), advance=advance, collapse=OFF) is None
    assert end_reason(history(all_correct=[0.9] * 5), advance=advance, collapse=OFF) == "AllCorrect"


def test_has_collapsed_needs_a_lasting_fall() -> None:
    """A collapse is a fall by more than `drop` in every step of the last window."""
    settings = CollapseTrigger(drop=0.3, window_steps=3)
    assert has_collapsed(history(reward=[0.6, 0.6, 0.6, 0.2, 0.2, 0.2]), settings)
    assert not has_collapsed(history(reward=[0.6, 0.6, 0.6, 0.2, 0.2, 0.5]), settings)  # recovered
    assert not has_collapsed(history(reward=[0.6, 0.6, 0.6, 0.45, 0.45, 0.45]), settings)  # fell by less
    assert not has_collapsed(history(reward=[0.0] * 10), settings)  # had no reward before
    fallen = history(reward=[0.6] * 3 + [0.1] * 3)
    assert end_reason(fallen, advance=AdvanceTrigger(), collapse=settings) == "Collapsed"
    assert not has_collapsed(fallen, OFF)


def test_is_off_policy_needs_a_lasting_low_sample_size() -> None:
    """The trigger needs every step of the window below the minimum; a step without an update breaks the window."""
    settings = CollapseTrigger(window_steps=3, min_effective_sample_size=0.4)
    assert is_off_policy(sizes(0.9, 0.3, 0.3, 0.3), settings)
    assert end_reason(sizes(0.3, 0.3, 0.3), advance=AdvanceTrigger(), collapse=settings) == "OffPolicy"
    assert not is_off_policy(sizes(0.3, 0.3), settings)
    assert not is_off_policy(sizes(0.3, 0.5, 0.3), settings)
    assert not is_off_policy(sizes(0.3, None, 0.3), settings)
    assert not is_off_policy(sizes(0.3, 0.3, 0.3), OFF)
