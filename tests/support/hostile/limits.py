"""Attacks on the limits and on the result of a call: forgeries, floods, bombs, and calls that do not end."""

from tests.support.hostile.model import hostile

FORGERIES = [
    hostile(
        "forged-response",
        "writes a result in the executor's format",
        "os.write(1, struct.pack('<QiIIIII', 1, 0, 0, 0, 3, 0, 0) + b'own')\nos._exit(9)",
        "error",
    ),
    hostile(
        "forged-markers",
        "prints the markers with which another judge measures time",
        "print('@@E')\nprint('@@D-5.0', flush=True)\nos._exit(0)",
        "ok",
        stdout="@@E\n@@D-5.0\n",
    ),
    hostile(
        "forged-json",
        "prints a result in the API's format, and fails",
        'print(\'{"status": "ok", "stdout": "42", "exit_code": 0}\')\nraise SystemExit(3)',
        "error",
    ),
    hostile(
        "exit-zero",
        "exits with status 0 during the handling of an error",
        "try: 1 / 0\nfinally: os._exit(0)",
        "ok",
        stdout="",
    ),
    hostile("exit-wraps", "exits with status 256, which wraps to 0", "sys.exit(256)", "ok", "error", stdout=""),
    hostile("fake-memory", "ends with the signal of a MemoryError", "os.kill(os.getpid(), 64)", "memory", stdout=""),
    hostile("fake-setup-failure", "exits with the status of a failed setup", "os._exit(70)", "error", stdout=""),
    hostile(
        "fake-signal",
        "ends itself with a signal",
        "os.kill(os.getpid(), 9)\ntime.sleep(5)\nos.abort()",
        "error",
        "timeout",
    ),
    hostile("segfault", "crashes the interpreter", "ctypes.string_at(0)", "error", stdout=""),
    hostile(
        "exception-hooks",
        "hides an error with the interpreter's hooks",
        "sys.excepthook = lambda *a: os._exit(0)\nimport atexit\natexit.register(os._exit, 0)\n1 / 0",
        "ok",
        stdout="",
    ),
    hostile(
        "closed-streams",
        "closes its streams and exits with status 0",
        "os.close(0); os.close(1); os.close(2)\ntime.sleep(0.1)\nos._exit(0)",
        "ok",
        stdout="",
    ),
    hostile("not-utf-8", "prints bytes that are not valid UTF-8", "os.write(1, bytes(range(256)) * 4)", "ok"),
    hostile(
        "control-characters",
        "prints control sequences for terminals and log readers",
        "sys.stdout.write('\\x1b[2J\\x1b]0;t\\x07\\r\\n\\0\\u202e\\ufeff{\"index\": 0}\\n')",
        "ok",
    ),
    hostile(
        "surrogates",
        "prints a lone surrogate",
        "sys.stdout.write('\\ud800')",
        "error",
        "ok",
    ),
]

FLOODS = [
    hostile(
        "flood-stdout",
        "prints without end",
        "while True: print('x' * 4096)",
        "output_limit",
        limits={"wall_seconds": 30},
    ),
    hostile(
        "flood-stderr",
        "prints errors without end",
        "while True: os.write(2, b'x' * 65536)",
        "output_limit",
        limits={"wall_seconds": 30},
    ),
    hostile("one-large-write", "prints 64 MiB in one write", "os.write(1, bytes(64 << 20))", "output_limit"),
    hostile(
        "flood-from-children",
        "prints from many processes",
        "for _ in range(8):\n    if os.fork() == 0: break\nwhile True: os.write(1, b'y' * 65536)",
        "output_limit",
        limits={"wall_seconds": 30},
    ),
    hostile(
        "flood-after-exit",
        "prints from a child after the exit of its parent",
        "if os.fork() == 0:\n    time.sleep(0.3)\n    while True: os.write(1, b'z' * 65536)\nprint('parent')",
        "ok",
        "output_limit",
    ),
    hostile(
        "slow-output",
        "prints one byte at a time without end",
        "while True:\n    os.write(1, b'.')\n    time.sleep(0.01)",
        "timeout",
        limits={"wall_seconds": 2},
    ),
    hostile("unread-input", "never reads its input", "time.sleep(0.2)\nprint('done')", "ok", stdout="done\n"),
]

BOMBS = [
    hostile("fork-bomb", "forks without end", "while True: os.fork()", limits={"wall_seconds": 2}),
    hostile(
        "fork-limit",
        "starts more processes than its limit",
        "n = 0\ntry:\n    while True:\n        if os.fork() == 0: time.sleep(60)\n        n += 1\n"
        "except OSError as e: print(e.errno == errno.EAGAIN, n <= 90)",
        "ok",
        stdout="True True\n",
        limits={"wall_seconds": 60},
    ),
    hostile(
        "thread-bomb",
        "starts threads without end",
        "import threading\nwhile True: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        "error",
        limits={"wall_seconds": 60},
    ),
    hostile("memory-bomb", "allocates 10 GB", "x = bytearray(10 << 30)", "memory"),
    hostile(
        "memory-in-small-pieces",
        "allocates memory in small pieces",
        "x = []\nwhile True: x.append(bytearray(1 << 20))",
        "memory",
        limits={"wall_seconds": 60},
    ),
    hostile(
        "memory-shared",
        "allocates memory outside its heap",
        "import mmap\nx = []\nwhile True:\n    m = mmap.mmap(-1, 64 << 20)\n    x.append(m)\n"
        "    for n in range(0, 64 << 20, 4096): m[n] = 1",
        "error",
        "memory",
        limits={"wall_seconds": 60, "memory_mib": 256},
    ),
    hostile(
        "memory-of-many-processes",
        "allocates memory in many processes, each within its limit",
        "for _ in range(12):\n    if os.fork() == 0: break\nx = bytearray(50 << 20)\ntime.sleep(60)",
        "memory",
        limits={"wall_seconds": 60, "memory_mib": 64},
    ),
    hostile(
        "memory-file",
        "allocates memory with memfd_create",
        "fd = os.memfd_create('x')\ntry:\n    while True: os.write(fd, bytes(1 << 20))\n"
        "except OSError: pass\nprint(os.fstat(fd).st_size <= 64 << 20)",
        limits={"wall_seconds": 30},
    ),
    hostile(
        "tmp-bomb",
        "fills /tmp",
        "n = 0\ntry:\n    while True:\n        open(f'/tmp/{n}', 'wb').write(bytes(8 << 20))\n        n += 1\n"
        "except OSError as e: print(e.errno == errno.ENOSPC, n <= 8)",
        "ok",
        stdout="True True\n",
        limits={"wall_seconds": 60},
    ),
    hostile(
        "file-too-large",
        "writes a very large file, sparse and real",
        "f = open('/tmp/x', 'wb')\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "attempt('truncate', lambda: f.truncate(1 << 40))\n"
        "attempt('seek', lambda: (f.seek(1 << 36), f.write(b'x'), f.flush()))\nos._exit(0)",
        "ok",
        "error",
    ),
    hostile(
        "many-files",
        "creates files without end",
        "n = 0\ntry:\n    while True:\n        os.mknod(f'/tmp/{n}')\n        n += 1\nexcept OSError: pass",
        limits={"wall_seconds": 3},
    ),
    hostile(
        "descriptor-bomb",
        "opens files without end",
        "n = 0\ntry:\n    while True:\n        os.dup(1)\n        n += 1\nexcept OSError as e:\n"
        "    print(e.errno == errno.EMFILE, n < 64)",
        "ok",
        stdout="True True\n",
    ),
    hostile(
        "socket-buffers",
        "fills socket buffers",
        "pairs = []\ntry:\n    while True:\n        a, b = socket.socketpair()\n        a.setblocking(False)\n"
        "        pairs.append((a, b))\n        try:\n            while True: a.send(bytes(65536))\n"
        "        except BlockingIOError: pass\nexcept OSError: pass\nprint(len(pairs) < 64)",
        "ok",
        stdout="True\n",
        limits={"wall_seconds": 30},
    ),
    hostile(
        "raise-limits",
        "raises its own limits",
        "import resource\n"
        "for what in (resource.RLIMIT_AS, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE):\n"
        "    _, hard = resource.getrlimit(what)\n"
        "    attempt(what, lambda: resource.setrlimit(what, (hard + 1, hard + 1)))",
        "ok",
    ),
    hostile(
        "priority",
        "raises its CPU priority",
        "try: os.nice(-10)  # gVisor accepts it without an effect\nexcept OSError: pass\n"
        "attempt('fifo', lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50)))",
        "ok",
        "error",
    ),
    hostile(
        "deep-recursion",
        "overflows the stack",
        "sys.setrecursionlimit(1 << 30)\ndef f(): f()\nf()",
        "error",
        "memory",
        "timeout",
    ),
    hostile(
        "huge-number",
        "computes a number with a billion digits",
        "x = 7 ** (10 ** 9)",
        "timeout",
        "memory",
        limits={"wall_seconds": 2},
    ),
    hostile(
        "slow-regex",
        "matches a regular expression of exponential cost",
        "import re\nre.match('(a+)+$', 'a' * 64 + 'b')",
        "timeout",
        limits={"wall_seconds": 2},
    ),
    hostile(
        "nested-source",
        "compiles source that overflows the parser",
        "compile('(' * 100000, 'x', 'eval')",
        "error",
        "output_limit",
    ),
    hostile(
        "unpacking-bomb",
        "decompresses a small text into gigabytes",
        "import zlib\ndata = zlib.compress(bytes(64 << 20), 9)\nx = []\nwhile True: x.append(zlib.decompress(data))",
        "memory",
        limits={"wall_seconds": 60},
    ),
]

SLEEPERS = [
    hostile(
        "cancelled-alarms",
        "cancels all alarms and sleeps",
        "signal.alarm(0)\nsignal.setitimer(signal.ITIMER_REAL, 0)\ntime.sleep(600)",
        "timeout",
        limits={"wall_seconds": 2},
    ),
    hostile(
        "ignored-signals",
        "ignores and blocks every signal",
        "for s in range(1, 65):\n    try: signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError): pass\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\ntime.sleep(600)",
        "timeout",
        limits={"wall_seconds": 2},
    ),
    hostile("busy-loop", "computes without end", "while True: pass", "timeout", limits={"wall_seconds": 2}),
    hostile(
        "sleeping-exit",
        "never returns from an exit function",
        "import atexit\natexit.register(time.sleep, 600)",
        "timeout",
        limits={"wall_seconds": 2},
    ),
    hostile(
        "sleeping-thread",
        "leaves a thread that never ends",
        "import threading\nthreading.Thread(target=time.sleep, args=(600,)).start()",
        "timeout",
        limits={"wall_seconds": 2},
    ),
    hostile(
        "daemon",
        "leaves a daemon",
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        for fd in (0, 1, 2): os.close(fd)\n"
        "        time.sleep(600)\n    os._exit(0)\nprint('done')",
        "ok",
        stdout="done\n",
    ),
    hostile(
        "held-pipe",
        "leaves a child that holds its output open",
        "if os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\nprint('parent', flush=True)\nos._exit(0)",
        "ok",
        stdout="parent\n",
        limits={"wall_seconds": 30},
    ),
    hostile(
        "orphan-adoption",
        "adopts its orphans, which ignore the death of their parent",
        "libc.prctl(36, 1, 0, 0, 0)\n"
        "for _ in range(3):\n    if os.fork() == 0:\n        libc.prctl(1, 0, 0, 0, 0)\n        os.setsid()\n"
        "        while True: time.sleep(1)\nos._exit(0)",
        "ok",
    ),
    hostile(
        "child-storm",
        "starts short-lived children without end",
        "while True:\n    pid = os.fork()\n    if pid == 0: os._exit(0)\n    os.waitpid(pid, 0)",
        "timeout",
        limits={"wall_seconds": 2},
    ),
]
