"""The API's application without a Redis: its OpenAPI page, and what is refused before anything runs."""

import json
import re
from typing import Any

import httpx
import pytest

from rstar2_train.judge.api.app import ApiSettings, make_app


def asking(token: str | None) -> httpx.AsyncClient:
    """A client of the application itself, which has not connected to Redis."""
    app = make_app(ApiSettings(redis="redis://127.0.0.1:1/0"), token=token)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://judge")


async def test_the_page_and_all_it_loads_come_from_here_without_a_token() -> None:
    async with asking("t0ken") as http:
        page = await http.get("/docs")
        loaded = re.findall(r"(?:src|href)=\"([^\"]+)\"", page.text)
        assert page.status_code == 200 and len(loaded) == 3
        assert "//" not in page.text.replace("window.location.protocol + '//'", "").replace("<!--", "")
        for path in (*loaded, "/openapi.json"):
            answer = await http.get(path)
            assert answer.status_code == 200 and len(answer.content) > 1000, path
        for path in ("/v1/status", "/docs/files/../../v1/status", "/docs/filesystem"):
            assert (await http.get(path)).status_code in (401, 404), path
        assert (await http.get("/v1/status")).status_code == 401


def operations(schema: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """Path and method to what is said of them."""
    return {(path, verb): one for path, verbs in schema["paths"].items() for verb, one in verbs.items()}


@pytest.mark.parametrize("token", ["t0ken", None])
async def test_the_page_can_send_the_token_where_one_is_asked_for(token: str | None) -> None:
    async with asking(token) as http:
        schema = (await http.get("/openapi.json")).json()
    schemes = {"bearer": {"type": "http", "scheme": "bearer"}} if token else None
    assert schema["components"].get("securitySchemes") == schemes
    for (path, _), said in operations(schema).items():
        asks = bool(token) and path not in ("/ping", "/metrics")
        assert (said.get("security") == [{"bearer": []}], "401" in said["responses"]) == (asks, asks), path


async def test_refusals_and_limits_are_told() -> None:
    async with asking(None) as http:
        schema = (await http.get("/openapi.json")).json()
    said = operations(schema)
    assert {"200", "400", "413", "422", "503"} == set(said["/v1/batch", "post"]["responses"])
    assert {"200", "400", "413", "422", "503"} == set(said["/run/long-batch", "post"]["responses"])
    assert {"200", "400", "409", "422", "503"} == set(said["/v1/sessions/{session}/cells", "post"]["responses"])
    assert "Retry-After" in said["/v1/run", "post"]["responses"]["503"]["headers"]
    assert schema["components"]["schemas"]["JudgeLimits"]["properties"]["outputBytes"]["maximum"] == 8388608
    assert "hugePages" in schema["components"]["schemas"]["WorkerReport"]["properties"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/run", {"type": "python", "solution": "print(1)", "sub_id": "\ud800"}),
        ("/judge/batch", {"sub_id": "\ud800", "submissions": [{"type": "python", "solution": "print(1)"}]}),
        ("/run/batch", {"submissions": [{"type": "python", "solution": "print(1)", "sub_id": "\ud800"}]}),
    ],
)
async def test_a_name_that_no_answer_can_carry_is_refused(path: str, body: dict[str, Any]) -> None:
    async with asking(None) as http:
        answer = await http.post(path, content=json.dumps(body), headers={"Content-Type": "application/json"})
    assert answer.status_code == 422 and answer.json()["detail"][0]["loc"][-1] == "sub_id"
