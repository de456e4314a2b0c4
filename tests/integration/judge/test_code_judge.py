"""Clients of code-judge, unchanged: the paths, requests and answers of the paper's public code."""

import json
from typing import Any

import httpx
import pytest

from rstar2_train.judge.api.schema import JudgeStatus
from rstar2_train.judge.local import LocalJudge


def post(judge: LocalJudge, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = httpx.post(f"{judge.url}{path}", json=body, trust_env=False, timeout=60)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_ping_and_status(judge: LocalJudge) -> None:
    assert httpx.get(f"{judge.url}/ping", trust_env=False).json() == "pong"
    # No other field: their client makes an object of exactly these.
    assert httpx.get(f"{judge.url}/status", trust_env=False).json() == {"queue": 0, "num_workers": 1}


def test_run(judge: LocalJudge) -> None:
    seen = post(judge, "/run", {"type": "python", "solution": "print(input())\n40 + 2", "input": "9", "sub_id": "mine"})
    cost = seen.pop("cost")
    assert 0 < cost < 4
    assert seen == {
        "sub_id": "mine",
        "success": True,
        "run_success": True,
        "stdout": "9\n",  # a script: the value of its last line is not shown
        "stderr": "",
        "reason": "",
    }


@pytest.mark.parametrize(("printed", "success"), [("9", True), (" 9\n", True), ("8", False)])
def test_judge_compares_what_was_printed(judge: LocalJudge, printed: str, success: bool) -> None:
    seen = post(judge, "/judge", {"type": "python", "solution": "print(9)", "expected_output": printed})
    assert (seen["success"], seen["run_success"]) == (success, True)
    assert "stdout" not in seen


@pytest.mark.parametrize("path", ["/run/batch", "/run/long-batch"])
def test_batch_as_the_rstar2_client_sends_it(judge: LocalJudge, path: str) -> None:
    codes = ["print(1)", "1 / 0", "while True: pass", "x = (", "import sys; sys.exit(3)", "print('x' * 5000)"]
    body = {"type": "batch", "submissions": [{"type": "python", "solution": code, "input": ""} for code in codes]}
    results = post(judge, path, body)["results"]
    assert [result["success"] for result in results] == [True, False, False, False, False, True]
    assert [result["reason"] for result in results] == ["", "", "worker_timeout", "", "", ""]
    assert results[1]["stderr"].endswith("ZeroDivisionError: division by zero\n")
    assert "SyntaxError" in results[3]["stderr"]
    assert results[5]["stdout"] == "x" * 1000


def test_verdicts_of_a_batch(judge: LocalJudge) -> None:
    submissions = [{"type": "python", "solution": f"print({n})", "expected_output": "1"} for n in (1, 2)]
    for path in ("/judge/batch", "/judge/long-batch"):
        seen = post(judge, path, {"type": "batch", "submissions": submissions})
        assert [result["success"] for result in seen["results"]] == [True, False]
        assert set(seen["results"][0]) == {"sub_id", "success", "run_success", "cost", "reason"}


@pytest.mark.parametrize("kind", ["math", "cpp"])
def test_other_languages_are_refused_in_their_place(judge: LocalJudge, kind: str) -> None:
    seen = post(judge, "/run", {"type": kind, "solution": "1"})
    assert (seen["run_success"], seen["reason"]) == (False, "invalid_input")
    assert kind in seen["stderr"]


def test_bad_requests_say_which_field(judge: LocalJudge) -> None:
    for body in ({"type": "python"}, {"type": "batch", "submissions": []}, {"type": "perl", "solution": "1"}):
        path = "/run/batch" if body["type"] == "batch" else "/run"
        answer = httpx.post(f"{judge.url}{path}", json=body, trust_env=False)
        assert answer.status_code == 422 and (
            "solution" in answer.text or "submissions" in answer.text or "type" in answer.text
        )


def test_openapi_lists_every_route(judge: LocalJudge) -> None:
    paths = set(httpx.get(f"{judge.url}/openapi.json", trust_env=False).json()["paths"])
    own = {"/ping", "/status", "/metrics", "/v1/run", "/v1/batch", "/v1/status"}
    theirs = {f"/{what}{kind}" for what in ("run", "judge") for kind in ("", "/batch", "/long-batch")}
    assert own | theirs <= paths
    assert httpx.get(f"{judge.url}/docs", trust_env=False).status_code == 200


def test_status_is_as_the_page_says(judge: LocalJudge) -> None:
    status = judge.status()
    assert JudgeStatus.model_validate(status).model_dump() == status and len(status["workers"]) == 1


def test_metrics(judge: LocalJudge) -> None:
    post(judge, "/run", {"type": "python", "solution": "print(1)"})
    text = httpx.get(f"{judge.url}/metrics", trust_env=False).text
    seen = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(seen['rstar2_judge_calls_total{status="ok"}']) >= 1
    assert float(seen['rstar2_judge_executors{state="ready"}']) == 1
    assert float(seen["rstar2_judge_queue_depth"]) == 0
    assert float(seen["rstar2_judge_run_seconds_count"]) >= 1
    assert json.loads(seen["rstar2_judge_pending"]) == 0
