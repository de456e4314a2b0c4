"""Advance triggers and collapse detection, on made-up histories."""

from rstar2_train.api.stages import AdvanceTrigger, CollapseTrigger
from rstar2_train.orchestrator.triggers import StepRecord, collapsed, decide

OFF = CollapseTrigger(enabled=False)


def history(*, reward=(), truncated=(), all_correct=()) -> list[StepRecord]:
    count = max(len(reward), len(truncated), len(all_correct))
    pad = lambda values: list(values) or [0.0] * count  # noqa: E731
    rows = zip(pad(reward), pad(truncated), pad(all_correct), strict=True)
    return [StepRecord(i + 1, r, t, a) for i, (r, t, a) in enumerate(rows)]


def test_no_trigger_set_never_advances() -> None:
    assert decide(history(all_correct=[1.0] * 50), advance=AdvanceTrigger(), collapse=OFF) is None


def test_all_correct_must_hold_for_the_whole_window() -> None:
    advance = AdvanceTrigger(all_correct_above=0.7, window_steps=3)
    assert decide(history(all_correct=[0.1, 0.8, 0.8]), advance=advance, collapse=OFF) is None
    assert decide(history(all_correct=[0.1, 0.8, 0.8, 0.71]), advance=advance, collapse=OFF) == "AllCorrect"
    assert decide(history(all_correct=[0.8, 0.7, 0.8]), advance=advance, collapse=OFF) is None


def test_truncation_must_be_low_and_settled() -> None:
    advance = AdvanceTrigger(truncation_below=0.1, window_steps=3)
    assert decide(history(truncated=[0.5, 0.11, 0.09, 0.10]), advance=advance, collapse=OFF) == "TruncationSettled"
    assert decide(history(truncated=[0.2, 0.02, 0.02]), advance=advance, collapse=OFF) is None  # low, not settled
    assert decide(history(truncated=[0.3, 0.3, 0.3]), advance=advance, collapse=OFF) is None  # settled, not low


def test_min_steps_holds_back() -> None:
    advance = AdvanceTrigger(all_correct_above=0.5, window_steps=2, min_steps=5)
    assert decide(history(all_correct=[0.9] * 4), advance=advance, collapse=OFF) is None
    assert decide(history(all_correct=[0.9] * 5), advance=advance, collapse=OFF) == "AllCorrect"


def test_collapse_is_a_fall_that_stays() -> None:
    settings = CollapseTrigger(drop=0.3, window_steps=3)
    assert collapsed(history(reward=[0.6, 0.6, 0.6, 0.2, 0.2, 0.2]), settings)
    assert not collapsed(history(reward=[0.6, 0.6, 0.6, 0.2, 0.2, 0.5]), settings)  # came back
    assert not collapsed(history(reward=[0.6, 0.6, 0.6, 0.45, 0.45, 0.45]), settings)  # fell by less
    assert not collapsed(history(reward=[0.0] * 10), settings)  # never had anything to lose
    assert decide(history(reward=[0.6] * 3 + [0.1] * 3), advance=AdvanceTrigger(), collapse=settings) == "Collapsed"
    assert not collapsed(history(reward=[0.6] * 3 + [0.1] * 3), OFF)
