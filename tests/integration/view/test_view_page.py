"""The page of `rstar2 view` in a real Chromium: clicks, narrow windows, many rows, hostile texts, a running job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from rstar2_train.analysis.analyse import AnalysisRequest, analyse
from rstar2_train.api.state_dir import JobState
from rstar2_train.rollout import trajectory_store
from rstar2_train.tracking.tracker import Tracker
from tests.support.browser import Page
from tests.support.trajectory_job import HOSTILE, Rollout

from .conftest import MANY

STORED = MANY + 21
LOADED = "table && rowCount > 0 && charts.length && !document.getElementById('charts').firstChild.hidden"
DRAWN = (
    "[...document.querySelectorAll('.chart:not([hidden]) canvas')].every((canvas) =>"
    " canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some((value) => value))"
)
"""Whether each visible curve has a pixel that is not blank."""


@pytest.fixture
def view(page: Page, url: str) -> Iterator[Page]:
    """The opened view. No test may cause an error, a dialog, a blocked script or a request to another server."""
    page.events.clear()
    page.open(url)
    page.wait(LOADED)
    yield page
    sent = [event["params"] for event in page.events if event["method"] == "Network.requestWillBeSent"]
    requests = [event["request"]["url"] for event in sent]
    foreign = [request for request in requests if urlsplit(request).netloc != urlsplit(url).netloc]
    assert page.messages() == [] and foreign == [] and len(requests) > 5
    assert page.value("document.title") == "tiny: live"


def rows(page: Page) -> list[str]:
    texts: list[str] = page.value("[...document.querySelectorAll('#list .row')].map((row) => row.innerText)")
    return texts


def choose(page: Page, *, index: int = 0) -> None:
    """Click a row of the list, and wait for its texts."""
    page.click("#list .row", index=index)
    wait_for_texts(page)


def wait_for_texts(page: Page) -> None:
    """Wait until the page shows the selected rollouts."""
    rows = "[selected, compared].filter((row) => row >= 0).join()"
    page.wait(f"selected >= 0 && document.getElementById('trajectory').dataset.rows === {rows}")


def test_view_click_on_curve_opens_rollouts_of_step(view: Page) -> None:
    """From a point of a curve to the rollouts of its step, the conversation of one, and another one next to it."""
    assert view.value(DRAWN) and "rl-1: training, step 3 of 8" in view.text("#progress")
    titles = view.value("[...document.querySelectorAll('.chart:not([hidden]) h2')].map((title) => title.innerText)")
    assert titles == ["Reward, share of correct rollouts", "Tool errors, failed calls / all calls", "Staleness, steps"]
    view.click(".chart .u-over")  # its middle: step 2 of 3
    wait_for_texts(view)
    assert view.text("#count").startswith("8 trajectories, 75.0 % correct")
    view.fill("#result", "correct")
    view.fill("#prompt", "P")
    assert len(rows(view)) == 2 and view.value("document.getElementById('reason').options.length") > 5
    view.fill("#reason", "dropped: penalty")
    assert rows(view)[0].startswith("correct rl-1, step 2: p #1")
    choose(view)
    assert "rollout 1" in view.text("#trajectory h2")
    text = view.text("#trajectory")
    for part in ("dropped: penalty", "Correct but not drawn", "verdict correct", "tool response", "execute_python"):
        assert part in text
    view.click(".group button", index=0)
    wait_for_texts(view)
    assert view.value("document.querySelectorAll('.pair .panel').length") == 2
    assert "rollouts 1 and 0" in view.text("#trajectory h2")
    assert "Both rollouts have the same tokens of the model." in view.text("#trajectory")
    assert "with=" in view.value("location.hash")
    view.click(".pair button")
    wait_for_texts(view)
    assert not view.value("document.querySelectorAll('.pair').length")
    view.click("#show-curves")
    assert view.value("document.getElementById('trajectory').hidden") and view.value(DRAWN)


def test_view_filters_10_000_trajectories(view: Page) -> None:
    """All rows are in the list, and only those on the screen are elements."""
    view.click("#show-trajectories")
    assert view.text("#about").startswith(f"{STORED:,} of {STORED:,} trajectories")
    assert len(rows(view)) < 40
    view.value("document.getElementById('list').scrollTop = 200000")
    view.wait("[...document.querySelectorAll('#list .row')].some((row) => row.offsetTop > 200000)")
    counts = {
        ("#prompt", "many-0042"): "16 trajectories", ("#reward-from", "0.5"): "14 trajectories",
        ("#tokens-to", "0"): "2 trajectories", ("#stop", "infrastructure"): "2 trajectories",
    }  # fmt: skip
    for (field, value), expected in counts.items():
        view.fill(field, value)
        assert view.text("#count").startswith(expected), field
        view.fill(field, "")
    view.fill("#text", "MANY-0624")
    view.wait("document.getElementById('count').innerText.startsWith('16 trajectories')")
    view.fill("#text", "")


def test_view_of_hostile_texts_executes_nothing(view: Page) -> None:
    """Markup in prompts, answers, reasons and outputs is shown as text. The fixture checks that nothing ran."""
    view.click("#show-trajectories")
    view.fill("#prompt", "</script>")
    choose(view)
    assert "<img src=x" in view.text("#trajectory h2")
    assert "</script><script>" in view.text("#trajectory .turn:last-child .tokens")
    assert view.value("document.querySelectorAll('#trajectory script, #trajectory img').length") == 0


@pytest.mark.parametrize("part", ["curves", "trajectories"])
def test_view_in_narrow_window_needs_no_sideways_scroll(view: Page, part: str) -> None:
    """At 400 pixels all is below each other, also a pair of rollouts and long words."""
    view.resize(400, 800)
    view.click(f"#show-{part}")
    if part == "trajectories":
        for prompt in ("</script>", "p"):
            view.fill("#prompt", prompt)
            view.fill("#stage", "" if prompt != "p" else "rl-1")
            choose(view)
            assert f"problem {prompt}" in view.text("#trajectory h2")
            assert view.value("document.documentElement.scrollWidth") == 400
        view.click(".group button")
        wait_for_texts(view)
        assert view.value("document.querySelectorAll('.pair').length") == 1
    view.wait("!charts[0].view || charts[0].view.width < 400")
    assert view.value("document.documentElement.scrollWidth") == 400


def test_view_follows_running_job(view: Page, state: JobState, rollout: Rollout) -> None:
    """New steps appear while the page is open; the shown rollout stays when an older step is deleted."""
    view.click("#show-trajectories")
    view.fill("#prompt", "p")
    view.fill("#stage", "rl-1")
    choose(view, index=1)
    heading = view.text("#trajectory h2")
    path = trajectory_store.step_path(state.stage("rl-1").trajectories, 4)
    trajectory_store.write(path, [rollout("new", sample, thought="now") for sample in (0, 1)])
    tracker = Tracker(state.root, job="tiny")
    tracker.log_metrics("rl-1", step=4, values={"reward/mean": 0.9, "sft/loss": 1})
    tracker.close()
    view.wait(f"rowCount === {STORED + 2} && points.length === 4")
    first = trajectory_store.step_path(state.stage("rl-1").trajectories, 1)
    first.unlink()
    view.wait(f"rowCount === {STORED + 2 - 8}")
    assert view.text("#trajectory h2") == heading and view.value("document.getElementById('prompt').value") == "p"
    assert view.value("columns.prompt[selected]") in heading
    assert view.value("charts[0].view.data[0].length") == 4


def test_pages_of_analysis_work_from_disk(page: Page, state: JobState) -> None:
    """The static viewer has the same scripts: it lists, shows, compares and searches without a server."""
    summary: dict[str, Any] = analyse(
        state, AnalysisRequest(out=state.analysis, stages=["rl-2", "hard"]), lambda total: lambda: None
    )
    page.events.clear()
    page.open((state.analysis / "viewer.html").as_uri())
    wait_for_texts(page)
    assert len(rows(page)) == summary["trajectories"] == 3
    page.click(".group button")
    wait_for_texts(page)
    assert page.value("document.querySelectorAll('.pair .panel').length") == 2
    page.fill("#text", "owned")
    page.wait("document.getElementById('count').innerText.startsWith('1 trajectory')")
    choose(page)
    assert "<img" in page.text("#trajectory h2")
    assert page.messages() == [] and HOSTILE.replace("\u2028", "") in page.text("#trajectory").replace("\u2028", "")
    assert page.value("document.title") == "tiny: trajectories"
