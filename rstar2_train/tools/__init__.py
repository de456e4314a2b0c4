"""The tools of the model: their signatures in the prompt, and the calls in a turn.

    parser  <-- rollout.agent (calls of a turn, tool responses), data.tiny, analysis (spans of calls)
      |  '--> types                     the status of a call
      v
    toolset <-- rollout.chat_format (system prompt), rollout.agent (programs of calls)
      |  |'-> function_schema           signature of a user's function
      |  |-> sandbox_program --> sandbox_runner (runs in the sandbox)
      |  |-> remote_schema, mcp_session --> mcp_stdio, bounded_http
      |  '-> environment --> episode_servers --> openenv
      v
    schema  <-- data.prepare and data.tiny (demonstrations)

Modules:

- `schema`           the signatures of the built-in tools, and the prompt section that describes tools
- `function_schema`  reads the signature of a user's function from its text
- `toolset`          the tools of a job: signatures, checks of arguments, programs of calls
- `remote_schema`    signature of a tool that a server describes
- `mcp_session`      a session with an MCP server, with deadline and limits; also used by rollout.remote_tools
- `mcp_stdio`        transport of a server that is a child process
- `environment`      the tools of an OpenEnv environment, and the texts of its observations
- `episode_servers`  which server of an environment gets the next episode
- `openenv`          a connection to a server: reset, step, state
- `bounded_http`     HTTP client that stops at a limit
- `sandbox_program`  the program that calls a user's function in the sandbox
- `sandbox_runner`   the part of that program that runs in the sandbox
- `parser`           reads the calls of a turn, and renders the text that answers each of them
- `call_form`        calls in the forms of model families, read and written by `parser`
- `types`            the statuses of a tool call

The texts are training inputs: rollouts and demonstrations must use the same strings.
"""
