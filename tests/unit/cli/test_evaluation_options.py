"""What the commands that sample tell a person who watches a file and no terminal."""

import pytest

from rstar2_train.cli import evaluation_options
from rstar2_train.evaluation.sample_result import SampleResult


def test_progress_is_told_in_lines_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation_options, "LINE_SECONDS", 0.0)
    with evaluation_options.ProgressBar() as shown:
        shown.begin(2, 5)
        shown.done(SampleResult("p", 0, "correct"))
        monkeypatch.setattr(evaluation_options, "LINE_SECONDS", 1000.0)
        shown.done(SampleResult("p", 1, "wrong"))
        monkeypatch.setattr(evaluation_options, "LINE_SECONDS", 0.0)
        shown.done(SampleResult("p", 2, "internal", failed=True))
    assert capsys.readouterr().err.splitlines()[:3] == [
        "2 of 5 samples are there already",
        "3 of 5 samples, 100% right",
        "5 of 5 samples, 50% right, 1 lost",
    ]
