"""Attacks on the limits and on the truth of a result: lies, floods, bombs, and calls that will not end."""

from tests.support.hostile.model import hostile

LIES = [
    hostile(
        "forged-response",
        "writes a result in the executor's own format",
        "os.write(1, struct.pack('<QiIIIII', 1, 0, 0, 0, 3, 0, 0) + b'own')\nos._exit(9)",
        "error",
    ),
    hostile(
        "forged-marks",
        "prints the marks by which another judge measures time",
        "print('@@E')\nprint('@@D-5.0', flush=True)\nos._exit(0)",
        "ok",
        stdout="@@E\n@@D-5.0\n",
    ),
    hostile(
        "forged-json",
        "prints a result as the API would send it, and fails",
        'print(\'{"status": "ok", "stdout": "42", "exit_code": 0}\')\nraise SystemExit(3)',
        "error",
    ),
    hostile("exit-zero", "ends well in the middle of a failure", "try: 1 / 0\nfinally: os._exit(0)", "ok", stdout=""),
    hostile("exit-wraps", "ends with 256, which would be 0", "sys.exit(256)", "ok", "error", stdout=""),
    hostile("fake-memory", "pretends to have run out of memory", "os._exit(85)", "memory", stdout=""),
    hostile("fake-setup-failure", "pretends that its setting up failed", "os._exit(70)", "error", stdout=""),
    hostile(
        "fake-signal",
        "ends itself by a signal",
        "os.kill(os.getpid(), 9)\ntime.sleep(5)\nos.abort()",
        "error",
        "timeout",
    ),
    hostile("segfault", "crashes the interpreter", "ctypes.string_at(0)", "error", stdout=""),
    hostile(
        "hooks",
        "hides an error in the interpreter's hooks",
        "sys.excepthook = lambda *a: os._exit(0)\nimport atexit\natexit.register(os._exit, 0)\n1 / 0",
        "ok",
        stdout="",
    ),
    hostile(
        "closed-streams",
        "closes its streams and goes on",
        "os.close(0); os.close(1); os.close(2)\ntime.sleep(0.1)\nos._exit(0)",
        "ok",
        stdout="",
    ),
    hostile("not-utf-8", "prints bytes that are no text", "os.write(1, bytes(range(256)) * 4)", "ok"),
    hostile(
        "control-characters",
        "prints what a terminal or a log reader would obey",
        "sys.stdout.write('\\x1b[2J\\x1b]0;t\\x07\\r\\n\\0\\u202e\\ufeff{\"index\": 0}\\n')",
        "ok",
    ),
    hostile(
        "surrogates",
        "prints half of a character",
        "sys.stdout.write('\\ud800')",
        "error",
        "ok",
    ),
]

FLOODS = [
    hostile(
        "flood-stdout", "prints for ever", "while True: print('x' * 4096)", "output_limit", limits={"wall_seconds": 30}
    ),
    hostile(
        "flood-stderr",
        "prints errors for ever",
        "while True: os.write(2, b'x' * 65536)",
        "output_limit",
        limits={"wall_seconds": 30},
    ),
    hostile("one-large-write", "prints 64 MiB at once", "os.write(1, bytes(64 << 20))", "output_limit"),
    hostile(
        "flood-by-children",
        "prints from many processes",
        "for _ in range(8):\n    if os.fork() == 0: break\nwhile True: os.write(1, b'y' * 65536)",
        "output_limit",
        limits={"wall_seconds": 30},
    ),
    hostile(
        "flood-after-the-end",
        "a child prints on when its parent has ended",
        "if os.fork() == 0:\n    time.sleep(0.3)\n    while True: os.write(1, b'z' * 65536)\nprint('parent')",
        "ok",
        "output_limit",
    ),
    hostile(
        "drip",
        "prints a byte at a time, for ever",
        "while True:\n    os.write(1, b'.')\n    time.sleep(0.01)",
        "timeout",
        limits={"wall_seconds": 2},
    ),
    hostile("deaf", "never reads its input", "time.sleep(0.2)\nprint('done')", "ok", stdout="done\n"),
]

BOMBS = [
    hostile("fork-bomb", "forks for ever", "while True: os.fork()", limits={"wall_seconds": 2}),
    hostile(
        "fork-limit",
        "more processes than it may have",
        "n = 0\ntry:\n    while True:\n        if os.fork() == 0: time.sleep(60)\n        n += 1\n"
        "except OSError as e: print(e.errno == errno.EAGAIN, n <= 40)",
        "ok",
        stdout="True True\n",
        limits={"wall_seconds": 60},
    ),
    hostile(
        "thread-bomb",
        "starts threads for ever",
        "import threading\nwhile True: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        "error",
        limits={"wall_seconds": 60},
    ),
    hostile("memory-bomb", "takes 10 GB", "x = bytearray(10 << 30)", "memory"),
    hostile(
        "memory-by-little",
        "takes memory in small pieces",
        "x = []\nwhile True: x.append(bytearray(1 << 20))",
        "memory",
        limits={"wall_seconds": 60},
    ),
    hostile(
        "memory-shared",
        "takes memory outside its heap",
        "import mmap\nx = []\nwhile True:\n    m = mmap.mmap(-1, 64 << 20)\n    x.append(m)\n"
        "    for n in range(0, 64 << 20, 4096): m[n] = 1",
        "error",
        "memory",
        limits={"wall_seconds": 60, "memory_mib": 256},
    ),
    hostile(
        "memory-of-many",
        "takes memory by many processes, each within its limit",
        "for _ in range(12):\n    if os.fork() == 0: break\nx = bytearray(50 << 20)\ntime.sleep(60)",
        "memory",
        limits={"wall_seconds": 60, "memory_mib": 64},
    ),
    hostile(
        "memory-file",
        "takes memory by memfd_create",
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
        "writes one enormous file, sparse and real",
        "f = open('/tmp/x', 'wb')\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "attempt('truncate', lambda: f.truncate(1 << 40))\n"
        "attempt('seek', lambda: (f.seek(1 << 36), f.write(b'x'), f.flush()))\nos._exit(0)",
        "ok",
        "error",
    ),
    hostile(
        "many-files",
        "makes files for ever",
        "n = 0\ntry:\n    while True:\n        os.mknod(f'/tmp/{n}')\n        n += 1\nexcept OSError: pass",
        limits={"wall_seconds": 3},
    ),
    hostile(
        "descriptor-bomb",
        "opens files for ever",
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
        "takes more than its share of the CPU",
        "try: os.nice(-10)  # gVisor takes note of it and does nothing\nexcept OSError: pass\n"
        "attempt('fifo', lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50)))",
        "ok",
        "error",
    ),
    hostile(
        "deep-recursion",
        "overruns the stack",
        "sys.setrecursionlimit(1 << 30)\ndef f(): f()\nf()",
        "error",
        "memory",
        "timeout",
    ),
    hostile(
        "huge-number",
        "computes a number of a billion digits",
        "x = 7 ** (10 ** 9)",
        "timeout",
        "memory",
        limits={"wall_seconds": 2},
    ),
    hostile(
        "slow-pattern",
        "a regular expression that never ends",
        "import re\nre.match('(a+)+$', 'a' * 64 + 'b')",
        "timeout",
        limits={"wall_seconds": 2},
    ),
    hostile(
        "nested-source", "source that breaks the parser", "compile('(' * 100000, 'x', 'eval')", "error", "output_limit"
    ),
    hostile(
        "unpacking-bomb",
        "unpacks a small text into gigabytes",
        "import zlib\ndata = zlib.compress(bytes(64 << 20), 9)\nx = []\nwhile True: x.append(zlib.decompress(data))",
        "memory",
        limits={"wall_seconds": 60},
    ),
]

SLEEPERS = [
    hostile(
        "disarmed",
        "switches every alarm off and sleeps",
        "signal.alarm(0)\nsignal.setitimer(signal.ITIMER_REAL, 0)\ntime.sleep(600)",
        "timeout",
        limits={"wall_seconds": 2},
    ),
    hostile(
        "deaf-to-signals",
        "ignores and blocks every signal",
        "for s in range(1, 65):\n    try: signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError): pass\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\ntime.sleep(600)",
        "timeout",
        limits={"wall_seconds": 2},
    ),
    hostile("busy-loop", "computes for ever", "while True: pass", "timeout", limits={"wall_seconds": 2}),
    hostile(
        "sleeping-exit",
        "never ends its last function",
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
        "leaves a daemon behind",
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        for fd in (0, 1, 2): os.close(fd)\n"
        "        time.sleep(600)\n    os._exit(0)\nprint('done')",
        "ok",
        stdout="done\n",
    ),
    hostile(
        "held-pipe",
        "leaves a child that holds its output",
        "if os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\nprint('parent', flush=True)\nos._exit(0)",
        "ok",
        stdout="parent\n",
        limits={"wall_seconds": 30},
    ),
    hostile(
        "orphan-keeper",
        "adopts its orphans and ignores the end of their parent",
        "libc.prctl(36, 1, 0, 0, 0)\n"
        "for _ in range(3):\n    if os.fork() == 0:\n        libc.prctl(1, 0, 0, 0, 0)\n        os.setsid()\n"
        "        while True: time.sleep(1)\nos._exit(0)",
        "ok",
    ),
    hostile(
        "vfork-storm",
        "makes children that live for a moment, for ever",
        "while True:\n    pid = os.fork()\n    if pid == 0: os._exit(0)\n    os.waitpid(pid, 0)",
        "timeout",
        limits={"wall_seconds": 2},
    ),
]
