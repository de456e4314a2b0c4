"""Cells that try to harm another session of the sandbox, or a later call: name -> cell.

Each is the first cell of a session whose further cells are harmless.
"""

SESSIONS = {
    "forged statuses": (
        "import os\nfor fd in range(3, 64):\n    try: os.write(fd, bytes(64))\n    except OSError: pass"
    ),
    "work between cells": "import os, time\nfor _ in range(8):\n    if os.fork() == 0:\n        while True: pass",
    "flood between cells": (
        "import os, threading\ndef flood():\n    while True: os.write(1, b'x' * 65536)\n"
        "threading.Thread(target=flood, daemon=True).start()"
    ),
    "daemon": (
        "import os, signal\nif os.fork() == 0:\n    os.setsid()\n    for s in range(1, 32):\n"
        "        try: signal.signal(s, signal.SIG_IGN)\n        except OSError: pass\n    while True: signal.pause()"
    ),
    "traced": ("import ctypes, os\nctypes.CDLL(None).ptrace(0, 0, 0, 0)\nos.kill(os.getpid(), 19)\nwhile True: pass"),
    "stopped": "import os\nos.kill(os.getpid(), 19)",
    "reads cells itself": (
        "import sys\nsys.path.insert(0, '/opt/executor')\nimport forkserver\nforkserver.next_cell(0)"
    ),
}
