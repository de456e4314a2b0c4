"""The client of the judge's HTTP API.

    rollout, rewards, serving ──▶ client.JudgeClient ──▶ session.JudgeSession
                                          └──── api_routes ───┘ ──utils.http_connections──▶ api

- `client`: JudgeClient, which joins concurrent calls into batches and resends lost requests.
- `session`: JudgeSession, whose cells share one Python process and are sent once.
- `api_routes`: the routes of the API and the bodies of requests, for both.
"""
