"""Attacks on other calls: the files, processes, memory and credentials that a call could find."""

from tests.support.hostile.model import hostile

LEFTOVERS = [
    hostile(
        "files-left",
        "finds files of the previous call",
        "for f in os.listdir('/tmp') + (os.listdir('/dev/shm') if os.path.isdir('/dev/shm') else []): breach(f)",
        "ok",
        before="import os\nfor n in range(9): open(f'/tmp/{n}', 'w').write('x')\nos.makedirs('/tmp/a/b/c')\n"
        "if os.path.isdir('/dev/shm'): open('/dev/shm/x', 'w').write('x')\n"
        "os.chmod('/tmp/a', 0)",
    ),
    hostile(
        "processes-left",
        "finds processes of the previous call",
        "for p in os.listdir('/proc'):\n    if p.isdigit() and int(p) != os.getpid(): breach(p)",
        "ok",
        before="import os, time, signal\n"
        "for n in range(4):\n    if os.fork() == 0:\n        os.setsid()\n        if os.fork() == 0:\n"
        "            for s in range(1, 32):\n                try: signal.signal(s, signal.SIG_IGN)\n"
        "                except OSError: pass\n"
        "            os.close(0); os.close(1); os.close(2)\n            while True: time.sleep(1)\n        os._exit(0)",
    ),
    hostile(
        "memory-left",
        "searches its memory for the code of the previous call",
        "needle = 'M4RK'.encode() + b'-8f3a-payload'\n"
        "for line in open('/proc/self/maps'):\n"
        "    span, mode = line.split()[:2]\n"
        "    if not mode.startswith('rw') or 'stack' in line: continue\n"
        "    low, high = (int(x, 16) for x in span.split('-'))\n"
        "    if high - low > 1 << 28: continue\n"
        "    try: text = ctypes.string_at(low, high - low)\n    except Exception: continue\n"
        "    at = text.find(needle)\n"
        "    while at >= 0:\n"
        "        if text[at - 2:at] == b'##': breach(hex(low + at))\n        at = text.find(needle, at + 1)\n",
        "ok",
        before="##M4RK-8f3a-payload\nprint('nothing')",
        limits={"memory_mib": 2048, "wall_seconds": 60},
    ),
    hostile(
        "shared-memory-left",
        "finds System V memory, semaphores and queues of the previous call",
        "for name, number in (('shmget', 29), ('semget', 64), ('msgget', 68)):\n"
        "    if libc.syscall(number, 4242, *((64, 0) if number != 68 else (0,))) >= 0: breach(name)",
        "ok",
        before="import ctypes\nl = ctypes.CDLL(None)\nl.syscall(29, 4242, 64, 0o1666)\nl.syscall(64, 4242, 1, 0o1666)\n"
        "l.syscall(68, 4242, 0o1666)",
    ),
    hostile(
        "foreign-environments",
        "reads environments and command lines of other processes",
        "for pid in range(0, 64):\n"
        "    for name in ('environ', 'cmdline', 'maps', 'stat'):\n"
        "        if pid != os.getpid(): attempt((pid, name), lambda: open(f'/proc/{pid}/{name}', 'rb').read()[:50])\n"
        "for name in os.environ:\n"
        "    if any(word in name for word in ('RSTAR2', 'PASSWORD', 'TOKEN', 'REDIS', 'KUBERNETES')): breach(name)",
        "ok",
    ),
    hostile(
        "account-tokens",
        "searches for credentials at the paths that pods have",
        "for f in ('/var/run/secrets', '/run/secrets', '/tmp/keys', '/etc/rstar2', '/root/.ssh', '/root/.kube'):\n"
        "    attempt(f, lambda: os.listdir(f))",
        "ok",
    ),
]
