"""The client of the judge's HTTP API.

    rollout, rewards, serving ──▶ client.JudgeClient ──▶ session.JudgeSession
                                          └── connections ──┘ ──HTTP──▶ api

- `client`: JudgeClient, which joins concurrent calls into batches and resends lost requests.
- `session`: JudgeSession, whose cells share one Python process and are sent once.
- `connections`: the HTTP connections, timeouts and bodies of both.
"""
