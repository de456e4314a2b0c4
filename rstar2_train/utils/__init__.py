"""Helpers that every package may import; this package imports none of the others.

- `api_error`: errors in OpenAI's format.
- `auth`: bearer tokens and passwords: environment variables, reader, checks.
- `dns`: addresses of the pods behind a headless Service.
- `files`: atomic writes, errors of a full disk.
- `http_connections`: HTTP connections of rollouts to engines and judge.
- `json_objects`: JSON objects without repeated keys.
- `json_route`: routes whose large bodies hold no event loop.
- `json_steps`: large JSON in short steps.
- `listening`: sockets of servers, on IPv4, IPv6 and both.
- `loop_lag`: the lag of an event loop.
- `open_files`: the limit of open files of a process.
- `options`: types of command-line options.
- `ports`: ports of a job's pods, free local ports.
- `scratch_dir`: a temporary folder that exists as long as its process.
- `supervisor`: starts, watches, restarts and stops child processes.
- `terminal`: stop signals, output to a closed terminal.
- `text`: text that cannot be encoded.

    cli, launch, serving, judge.local -> supervisor -> files, terminal
    inference, judge.client -> http_connections
    judge, rollout, serving -> json_route -> json_steps
    every process -> auth, dns, ports
    every server of a pod -> listening -> dns
"""
