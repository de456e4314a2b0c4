"""The verdict of the probe on an engine's log-probabilities."""

import pytest

from rstar2_train.weights.probe import Probe, Scores, probe_rows

ROWS = [[1, 2, 3], [4, 5, 6]]
EXPECTED: Scores = [[-1.0, -2.0], [-3.0, -4.0]]
CLOSE: Scores = [[-1.001, -2.0], [-3.0, -4.001]]
FAR: Scores = [[-1.5, -2.0], [-3.0, -4.0]]


@pytest.mark.parametrize(
    ("scores", "before", "changes", "refusal"),
    [
        (CLOSE, EXPECTED, True, ""),
        (CLOSE, None, True, ""),
        (CLOSE, CLOSE, False, ""),
        (CLOSE, CLOSE, True, "was not applied"),
        (FAR, EXPECTED, True, "mean difference 0.125 nats"),
        ([[float("nan"), -2.0], [-3.0, -4.0]], None, True, "are not numbers"),
        ([[-1.0]], None, True, "1 log-probabilities for 4 tokens"),
    ],
)
def test_probe_refusal_names_the_reason(scores: Scores, before: Scores | None, changes: bool, refusal: str) -> None:
    """Agreement and change are both required; an unchanged model need not change."""
    probe = Probe(ROWS, EXPECTED, 0.01, expects_change=changes)
    assert refusal in probe.refusal(scores, before=before)
    assert bool(probe.refusal(scores, before=before)) == bool(refusal)


def test_probe_of_an_adapter_differs_from_the_base() -> None:
    """An engine whose values are those of its base does not use the adapter, even if they are within the tolerance."""
    probe = Probe(ROWS, EXPECTED, 0.01, expects_change=False, has_adapter=True)
    assert "equal those of the base" in probe.refusal(CLOSE, before=None, base=CLOSE)
    assert probe.refusal(CLOSE, before=None, base=EXPECTED) == ""
    assert "another scale of the adapter" in probe.refusal(FAR, before=None, base=EXPECTED)
    assert Probe(ROWS, EXPECTED, 0.01, expects_change=False).refusal(CLOSE, before=None, base=CLOSE) == ""


def test_probe_rows_are_fixed_and_in_the_vocabulary() -> None:
    """The same tokens in every process, and other models have ids that exist."""
    assert probe_rows(300) == probe_rows(300)
    assert all(0 <= token < 61 for row in probe_rows(61) for token in row)
