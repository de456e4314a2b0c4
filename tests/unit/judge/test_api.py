"""The API's application without a Redis: its OpenAPI page, and the requests that it rejects before anything runs."""

import json
import re
from collections.abc import AsyncIterator, MutableMapping
from typing import Any

import httpx
import pytest

from rstar2_train.judge.api.app import ApiSettings, create_app


def api_client(token: str | None) -> httpx.AsyncClient:
    """Return a client of the application itself, which is not connected to Redis."""
    app = create_app(ApiSettings(redis="redis://127.0.0.1:1/0"), token=token)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://judge")


async def fetch_schema(token: str | None) -> dict[str, Any]:
    """Return the OpenAPI schema."""
    async with api_client(token) as http:
        schema: dict[str, Any] = (await http.get("/openapi.json")).json()
    return schema


def operations(schema: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the operations by path and method."""
    return {(path, method): operation for path, item in schema["paths"].items() for method, operation in item.items()}


async def test_page_is_complete_and_needs_no_token() -> None:
    """The API serves the page and all its files itself."""
    async with api_client("t0ken") as http:
        page = await http.get("/docs")
        files = re.findall(r"(?:src|href)=\"([^\"]+)\"", page.text)
        assert page.status_code == 200 and len(files) == 3
        assert "//" not in page.text.replace("window.location.protocol + '//'", "").replace("<!--", "")
        for path in (*files, "/openapi.json"):
            response = await http.get(path)
            assert response.status_code == 200 and len(response.content) > 1000, path
        for path in ("/v1/status", "/docs/files/../../v1/status", "/docs/filesystem"):
            assert (await http.get(path)).status_code in (401, 404), path
        assert (await http.get("/v1/status")).status_code == 401


@pytest.mark.parametrize("token", ["t0ken", None])
async def test_schema_requires_the_token_if_set(token: str | None) -> None:
    """The schema lists the token and the response 401 for every route that requires it."""
    schema = await fetch_schema(token)
    schemes = {"bearer": {"type": "http", "scheme": "bearer"}} if token else None
    assert schema["components"].get("securitySchemes") == schemes
    for (path, _), operation in operations(schema).items():
        required = bool(token) and path not in ("/ping", "/metrics")
        documented = (operation.get("security") == [{"bearer": []}], "401" in operation["responses"])
        assert documented == (required, required), path


async def test_schema_references_resolve() -> None:
    """Every reference of the schema names one of its models."""
    schema = await fetch_schema("t0ken")
    references = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(schema)))
    assert references and references <= set(schema["components"]["schemas"])


async def test_schema_lists_errors_limits_and_descriptions() -> None:
    """The schema has the error responses, the bounds and the descriptions of fields."""
    schema = await fetch_schema(None)
    documented = operations(schema)
    assert {"200", "400", "413", "422", "503"} == set(documented["/v1/batch", "post"]["responses"])
    assert {"200", "400", "413", "422", "503"} == set(documented["/run/long-batch", "post"]["responses"])
    assert {"200", "400", "413", "422", "503"} == set(documented["/v1/run", "post"]["responses"])
    assert {"200", "400", "409", "413", "422", "503"} == set(
        documented["/v1/sessions/{session}/cells", "post"]["responses"]
    )
    assert "Retry-After" in documented["/v1/run", "post"]["responses"]["503"]["headers"]
    models = schema["components"]["schemas"]
    assert models["JudgeLimits"]["properties"]["outputBytes"]["maximum"] == 8388608
    assert "huge pages" in models["WorkerReport"]["properties"]["huge_pages"]["description"]


async def chunks(size: int) -> AsyncIterator[bytes]:
    """Yield `size` spaces, in chunks of a MiB: a body without a declared length."""
    for _ in range(size >> 20):
        yield b" " * (1 << 20)


@pytest.mark.parametrize("path", ["/v1/run", "/run", "/v1/sessions/s/cells"])
async def test_chunked_body_above_its_limit_is_rejected(path: str) -> None:
    """The answer 413 has the limits; a body at the limit is parsed."""
    async with api_client(None) as http:
        statuses = []
        for size in (32 << 20, 33 << 20):
            response = await http.post(path, content=chunks(size), headers={"Content-Type": "application/json"})
            statuses.append(response.status_code)
    assert statuses == [422, 413]
    for limit in ("larger than 32 MiB", "1 MiB and its stdin 4 MiB"):
        assert limit in response.json()["detail"]


@pytest.mark.parametrize(
    ("path", "limit"), [("/v1/run", 32 << 20), ("/v1/batch", 320 << 20), ("/run/batch", 320 << 20)]
)
async def test_body_with_large_declared_length_is_not_read(path: str, limit: int) -> None:
    """A body above the limit is rejected before its first byte is in memory."""
    sent: list[MutableMapping[str, Any]] = []
    reads: list[int] = []

    async def receive() -> dict[str, Any]:
        reads.append(length)
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    app = create_app(ApiSettings(redis="redis://127.0.0.1:1/0"), token=None)
    for length in (limit, limit + 1):
        headers = [(b"content-type", b"application/json"), (b"content-length", str(length).encode())]
        scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
        await app(scope, receive, send)
    assert [message["status"] for message in sent if "status" in message] == [422, 413]
    assert reads == [limit]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/run", {"type": "python", "solution": "print(1)", "sub_id": "\ud800"}),
        ("/judge/batch", {"sub_id": "\ud800", "submissions": [{"type": "python", "solution": "print(1)"}]}),
        ("/run/batch", {"submissions": [{"type": "python", "solution": "print(1)", "sub_id": "\ud800"}]}),
    ],
)
async def test_code_judge_id_with_surrogate_is_rejected(path: str, body: dict[str, Any]) -> None:
    """The id is part of the response, which must be valid UTF-8."""
    async with api_client(None) as http:
        response = await http.post(path, content=json.dumps(body), headers={"Content-Type": "application/json"})
    (error,) = response.json()["detail"]
    assert response.status_code == 422 and error["loc"][-1] == "sub_id" and "Send Unicode text" in error["msg"]


@pytest.mark.parametrize(
    ("path", "content", "status", "message"),
    [
        ("/v1/run", b"", 422, "The body is empty or null. Send a JSON object"),
        ("/v1/run", b"{", 422, "not valid JSON at character 1: Expecting property name"),
        ("/v1/run", b"[]", 422, "This must be a JSON object. The body needs the header Content-Type"),
        ("/v1/run", b"\xff{}", 400, "not JSON in UTF-8 that this server can parse: 'utf-8' codec can't decode"),
        ("/v1/run", b"[" * 100_000, 400, "can parse: maximum recursion depth exceeded"),
        ("/v1/run", b"9" * 5000, 400, '(4300 digits) for integer string conversion: value has 5000 digits."}'),
        ("/v1/run", b"{}", 422, "This field is required."),
        ("/v1/run", b'{"code": "", "colour": 1}', 422, "This field is unknown. The page /docs lists the fields"),
        ("/v1/run", b'{"code": "", "limits": {"wallSeconds": 1e999}}', 422, "finite number"),
        ("/v1/batch", b'{"calls": []}', 422, "at least one item"),
        (
            "/v1/batch",
            b'{"calls": [%s{"code": ""}]}' % (b'{"code": ""},' * 64),
            422,
            "65 items; at most 64 are allowed.",
        ),
        ("/run", b'{"type": "ruby", "solution": ""}', 422, "'python', 'cpp' or 'math'"),
        ("/v1/runs", b"{}", 404, "There is no route /v1/runs. The page /docs lists all routes."),
        ("/ping", b"", 405, "The route /ping does not accept POST; use GET."),
    ],
)
async def test_invalid_request_gets_cause_and_remedy(path: str, content: bytes, status: int, message: str) -> None:
    """The text of an error names the part of the request that is wrong, and the valid form."""
    async with api_client(None) as http:
        response = await http.post(path, content=content, headers={"Content-Type": "application/json"})
    assert response.status_code == status and message in response.text


async def test_missing_token_gets_the_header_to_send() -> None:
    """The answer 401 names the header and the variable of the token."""
    async with api_client("t0ken") as http:
        response = await http.post("/v1/run", json={"code": ""})
    assert response.status_code == 401
    assert "Authorization: Bearer TOKEN" in response.text and "RSTAR2_JUDGE_TOKEN" in response.text


def test_schema_is_generated_before_the_first_request() -> None:
    """The generation takes tens of milliseconds, in which the event loop would answer no call."""
    assert create_app(ApiSettings(redis="redis://127.0.0.1:1/0"), token=None).openapi_schema is not None
