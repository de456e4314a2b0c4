"""Progress of the sampling commands without a terminal."""

import pytest

from rstar2_train.cli import evaluation_options
from rstar2_train.evaluation.sample_result import SampleResult


def test_progress_without_terminal_is_printed_as_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line has the finished samples, the share of correct ones, and the lost ones."""
    monkeypatch.setattr(evaluation_options, "LINE_SECONDS", 0.0)
    with evaluation_options.ProgressBar() as progress:
        progress.start(2, 5)
        progress.advance(SampleResult("p", 0, "correct"))
        monkeypatch.setattr(evaluation_options, "LINE_SECONDS", 1000.0)
        progress.advance(SampleResult("p", 1, "wrong"))
        monkeypatch.setattr(evaluation_options, "LINE_SECONDS", 0.0)
        progress.advance(SampleResult("p", 2, "internal", failed=True))
    assert capsys.readouterr().err.splitlines()[:3] == [
        "Resuming: 2 of 5 samples already done",
        "3 of 5 samples, 100% correct",
        "5 of 5 samples, 50% correct, 1 lost",
    ]
