"""Attacks on the executor: the processes, pipes and code that run a call."""

from tests.support.hostile.model import hostile

EXECUTOR = [
    hostile(
        "kill-parents",
        "kills the processes that started it",
        "for pid in (os.getppid(), 2, 3, 4, 5):\n"
        "    if pid: attempt(pid, lambda: os.kill(pid, 9))\nfor pid in range(2, 64): libc.syscall(234, pid, pid, 9)\n"
        "print(os.getppid())",
        "ok",
        stdout="0\n",
    ),
    hostile("kill-all", "sends signals to all processes", "os.kill(-1, 9)\nos.killpg(0, 15)"),
    hostile(
        "ptrace",
        "attaches to other processes",
        "for pid in range(0, 64):\n    if pid != os.getpid() and libc.ptrace(16, pid, 0, 0) == 0: breach(pid)",
        "ok",
    ),
    hostile(
        "foreign-memory",
        "reads and writes memory of other processes",
        "for pid in range(0, 64):\n"
        "    if pid == os.getpid(): continue\n"
        "    attempt(pid, lambda: open(f'/proc/{pid}/mem', 'r+b'))\n"
        "    vec = struct.pack('QQ', ctypes.addressof(ctypes.create_string_buffer(8)), 8)\n"
        "    if libc.syscall(310, pid, vec, 1, vec, 1, 0) > 0: breach('process_vm_readv', pid)",
        "ok",
    ),
    hostile(
        "foreign-limits",
        "changes limits and priorities of other processes",
        "for pid in range(2, 64):\n"
        "    if libc.prlimit(pid, 0, struct.pack('qq', 1, 1), None) == 0: breach('prlimit', pid)\n"
        "    if libc.setpriority(0, pid, 19) == 0: breach('setpriority', pid)",
        "ok",
    ),
    hostile(
        "descriptors",
        "writes to file descriptors that it did not open",
        "for fd in range(3, 1024): attempt(fd, lambda: os.write(fd, b'x' * 32))",
        "ok",
    ),
    hostile(
        "foreign-descriptors",
        "opens pipes of other processes",
        "for pid in range(0, 64):\n"
        "    for fd in range(64):\n"
        "        if pid != os.getpid(): attempt((pid, fd), lambda: open(f'/proc/{pid}/fd/{fd}', 'wb'))",
        "ok",
    ),
    hostile(
        "shared-mappings",
        "searches for memory that it shares with its parent",
        "for line in open('/proc/self/maps'):\n    mode = line.split()[1]\n"
        "    if mode.endswith('s') and 'w' in mode: breach(line)",
        "ok",
    ),
    hostile(
        "poison-interpreter",
        "leaves patched built-ins for the next call",
        "import builtins\nif builtins.print is None or 'poison' in sys.modules: breach('modules')\n"
        "if os.environ.get('POISON') or os.getpid() == 7: breach('environment')",
        "ok",
        before="import builtins, os, sys\nbuiltins.print = None\nsys.modules['poison'] = sys\n"
        "os.environ['POISON'] = '1'\nos.getpid = lambda: 7\n",
    ),
    hostile(
        "executor-frames",
        "walks the stack frames of the executor and calls its functions",
        "frame = sys._getframe()\nseen = set()\n"
        "while frame:\n    seen.update(frame.f_globals)\n    frame = frame.f_back\n"
        "import gc\nfor one in gc.get_objects():\n"
        "    if type(one).__name__ == 'module' and one.__name__ == 'forkserver': breach('forkserver', one)\n",
        "ok",
    ),
    hostile(
        "executor-library",
        "loads the executor's library and acts as the executor",
        "sys.path.insert(0, '/opt/executor')\n"
        "import forkserver\nr, w = os.pipe()\nforkserver.serve(r, 1, 0, 1 << 20, 1 << 20, 8)\n",
        limits={"wall_seconds": 3},
    ),
    hostile(
        "stop-itself",
        "stops (SIGSTOP) and does not exit",
        "os.kill(os.getpid(), signal.SIGSTOP)\nlibc.raise_(19) if hasattr(libc, 'raise_') else None\ntime.sleep(60)",
        "timeout",
        limits={"wall_seconds": 2},
    ),
    hostile(
        "traced-by-parent",
        "makes the executor its tracer and stops; a careless parent takes a stop for an exit",
        "libc.ptrace(0, 0, 0, 0)\nos.kill(os.getpid(), signal.SIGSTOP)\nwhile True: time.sleep(1)",
        limits={"wall_seconds": 3},
    ),
]
