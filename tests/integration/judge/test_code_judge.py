"""Unchanged clients of code-judge: the paths, requests and responses of the paper's public code."""

import json
from typing import Any

import httpx
import pytest

from rstar2_train.judge.api.schema import JudgeStatus
from rstar2_train.judge.loadgen import rstar_template
from tests.support.unsupervised_judge import UnsupervisedJudge
from tests.support.waiting import until


def post(judge: UnsupervisedJudge, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = httpx.post(f"{judge.url}{path}", json=body, trust_env=False, timeout=60)
    assert response.status_code == 200, response.text
    return dict(response.json())


def test_code_judge_ping_and_status(judge: UnsupervisedJudge) -> None:
    """The process answers, and its load has the two fields that clients expect."""
    assert httpx.get(f"{judge.url}/ping", trust_env=False, timeout=60).json() == "pong"
    # No other field: the client's class has exactly these. A report of the worker may be late.
    load = {"queue": 0, "num_workers": 1}
    until(lambda: httpx.get(f"{judge.url}/status", trust_env=False, timeout=60).json() == load, "the load is reported")


def test_code_judge_run(judge: UnsupervisedJudge) -> None:
    """A program gets its input; the result has the output, and not the value of the last line."""
    result = post(
        judge, "/run", {"type": "python", "solution": "print(input())\n40 + 2", "input": "9", "sub_id": "mine"}
    )
    assert result.pop("cost") > 0
    assert result == {
        "sub_id": "mine",
        "success": True,
        "run_success": True,
        "stdout": "9\n",  # a script: the value of its last line is not printed
        "stderr": "",
        "reason": "",
    }


@pytest.mark.parametrize(("printed", "success"), [("9", True), (" 9\n", True), ("8", False)])
def test_code_judge_compares_the_output(judge: UnsupervisedJudge, printed: str, success: bool) -> None:
    """A submission is a success if its output equals the expected one, apart from surrounding whitespace."""
    result = post(judge, "/judge", {"type": "python", "solution": "print(9)", "expected_output": printed})
    assert (result["success"], result["run_success"]) == (success, True)
    assert "stdout" not in result


@pytest.mark.parametrize("path", ["/run/batch", "/run/long-batch"])
def test_code_judge_batch_of_the_rstar2_client(judge: UnsupervisedJudge, path: str) -> None:
    """A batch as the paper's code sends it gets a result with a reason per submission."""
    codes = ["print(1)", "1 / 0", "while True: pass", "x = (", "import sys; sys.exit(3)", "print('x' * 5000)"]
    body = {"type": "batch", "submissions": [{"type": "python", "solution": code, "input": ""} for code in codes]}
    results = post(judge, path, body)["results"]
    assert [result["success"] for result in results] == [True, False, False, False, False, True]
    assert [result["reason"] for result in results] == ["", "", "worker_timeout", "", "", ""]
    assert results[1]["stderr"].endswith("ZeroDivisionError: division by zero\n")
    assert "SyntaxError" in results[3]["stderr"]
    assert results[5]["stdout"] == "x" * 1000


def test_code_judge_output_is_cut(judge: UnsupervisedJudge) -> None:
    """Output above the kept size does not fail a program; an expected output of any size is compared as a whole."""
    result = post(judge, "/run", {"type": "python", "solution": "print('x' * 3_000_000)"})
    assert (result["success"], result["run_success"], result["stdout"]) == (True, True, "x" * 1000)
    body = {"type": "python", "solution": "print('x' * 100_000 + 'y')", "expected_output": "x" * 100_000}
    assert post(judge, "/run", {**body, "expected_output": "x" * 100_000 + "y"})["success"]
    assert not post(judge, "/run", body)["success"]


def test_code_judge_timeout_keeps_the_output(judge: UnsupervisedJudge) -> None:
    """A program over its time limit ends with code-judge's last line, also if it stops the timer."""
    result = post(judge, "/run", {"type": "python", "solution": "print('started')\nwhile True: pass"})
    assert (result["success"], result["reason"]) == (False, "worker_timeout")
    assert result["stdout"] == "started\nSuicide from timeout.\n" and result["cost"] > 3.5
    stopped = post(judge, "/run", {"type": "python", "solution": "import signal\nsignal.alarm(0)\nwhile True: pass"})
    assert (stopped["reason"], stopped["stderr"]) == ("worker_timeout", "")


def test_code_judge_missing_module_is_logged_once(judge: UnsupervisedJudge) -> None:
    """A reward that the client computes in the judge fails with a message that names the remedy."""
    code = "from fused_compute_score import compute_score\nprint(f'<result>{compute_score(1, 1)}</result>')"
    for _ in range(2):
        result = post(judge, "/run", {"type": "python", "solution": code})
        assert not result["success"] and "No module named 'fused_compute_score'" in result["stderr"]
    assert judge.log("api").count("no module fused_compute_score") == 1
    assert "RSTAR2_SANDBOX_PACKAGES" in judge.log("api")


def test_code_judge_template_of_rstar2_agent(judge: UnsupervisedJudge) -> None:
    """The template of the paper's client: values of last expressions, replayed cells, errors."""
    programs = {
        rstar_template("x + 1", history=["x = 41\nprint('hidden')"]): (True, "42\n"),
        rstar_template("from sympy import *\nfactor(symbols('t')**2 - 1)"): (True, "(t - 1)*(t + 1)\n"),
        rstar_template("1 / 0"): (False, ""),
    }
    body = {"type": "batch", "submissions": [{"type": "python", "solution": code} for code in programs]}
    results = post(judge, "/run/long-batch", body)["results"]
    assert [(result["success"], result["stdout"]) for result in results] == list(programs.values())
    assert "ZeroDivisionError" in results[2]["stderr"]


def test_code_judge_batch_verdicts(judge: UnsupervisedJudge) -> None:
    """The routes /judge return verdicts without the output."""
    submissions = [{"type": "python", "solution": f"print({n})", "expected_output": "1"} for n in (1, 2)]
    for path in ("/judge/batch", "/judge/long-batch"):
        result = post(judge, path, {"type": "batch", "submissions": submissions})
        assert [result["success"] for result in result["results"]] == [True, False]
        assert set(result["results"][0]) == {"sub_id", "success", "run_success", "cost", "reason"}


@pytest.mark.parametrize("kind", ["math", "cpp"])
def test_code_judge_other_languages_are_invalid_input(judge: UnsupervisedJudge, kind: str) -> None:
    """A submission in another language gets the reason `invalid_input`, and the others run."""
    result = post(judge, "/run", {"type": kind, "solution": "1"})
    assert (result["run_success"], result["reason"]) == (False, "invalid_input")
    assert kind in result["stderr"]


def test_code_judge_invalid_request_names_the_field(judge: UnsupervisedJudge) -> None:
    """A request with a missing or wrong field is rejected with the name of the field."""
    for body in ({"type": "python"}, {"type": "batch", "submissions": []}, {"type": "perl", "solution": "1"}):
        path = "/run/batch" if body["type"] == "batch" else "/run"
        response = httpx.post(f"{judge.url}{path}", json=body, trust_env=False, timeout=60)
        assert response.status_code == 422 and (
            "solution" in response.text or "submissions" in response.text or "type" in response.text
        )


def test_api_openapi_lists_every_route(judge: UnsupervisedJudge) -> None:
    """The schema contains the routes of the judge and of code-judge."""
    paths = set(httpx.get(f"{judge.url}/openapi.json", trust_env=False, timeout=60).json()["paths"])
    own = {"/ping", "/status", "/metrics", "/v1/run", "/v1/batch", "/v1/status"}
    code_judge = {f"/{verb}{kind}" for verb in ("run", "judge") for kind in ("", "/batch", "/long-batch")}
    assert own | code_judge <= paths
    assert httpx.get(f"{judge.url}/docs", trust_env=False, timeout=60).status_code == 200


def test_api_status_matches_its_schema(judge: UnsupervisedJudge) -> None:
    """The status has exactly the documented fields."""
    status = judge.status() | {"workers": [judge.report()]}
    assert JudgeStatus.model_validate(status).model_dump() == status


def test_api_metrics(judge: UnsupervisedJudge) -> None:
    """The metrics count calls, run times, the queue and executors."""
    post(judge, "/run", {"type": "python", "solution": "print(1)"})

    def read() -> dict[str, str]:
        text = httpx.get(f"{judge.url}/metrics", trust_env=False, timeout=60).text
        return dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))

    # The executors are in a report that the worker sends every second.
    until(lambda: float(read().get('rstar2_judge_executors{state="ready"}', 0)) == 1, "the sandbox is reported")
    values = read()
    assert float(values['rstar2_judge_calls_total{status="ok"}']) >= 1
    assert float(values["rstar2_judge_queue_depth"]) == 0
    assert float(values["rstar2_judge_run_seconds_count"]) >= 1
    assert json.loads(values["rstar2_judge_pending"]) == 0
