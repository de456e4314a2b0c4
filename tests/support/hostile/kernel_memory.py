"""Attacks on the memory of the sandbox's kernel, which belongs to no process: names, locks, queues, descriptors."""

from tests.support.hostile.model import hostile

KERNEL_MEMORY = [
    hostile(
        "file-attributes",
        "stores data in extended attributes, which no limit of memory counts",
        "open('/tmp/a', 'w').close()\n"
        "attempt('setxattr', lambda: os.setxattr('/tmp/a', 'user.a', bytes(4096)))\n"
        "attempt('fsetxattr', lambda: os.setxattr(os.open('/tmp/a', os.O_RDWR), 'user.a', b'a'))\n"
        "call('lsetxattr', 189, b'/tmp/a', b'user.a', b'a', 1, 0)",
        "ok",
    ),
    hostile(
        "kernel-queues",
        "stores data in kernel objects without a descriptor: queues, shared memory, timers, I/O contexts",
        "call('shmget', 29, 0, 1 << 20, 0o1600)\ncall('semget', 64, 0, 100, 0o1600)\n"
        "call('msgget', 68, 0, 0o1600)\ncall('mq_open', 240, b'queue', 0o100 | os.O_RDWR, 0o600, 0)\n"
        "call('io_setup', 206, 100, ctypes.create_string_buffer(8))\n"
        "call('timer_create', 222, 1, 0, ctypes.create_string_buffer(8))\ncall('unshare', 272, 0x10000000)",
        "ok",
    ),
    hostile(
        "long-links",
        "stores data in the targets of symbolic links",
        "n = 0\ntry:\n    while True:\n        os.symlink('x' * 4000, f'/tmp/{n}')\n        n += 1\n"
        "except OSError as e: print(e.errno == errno.ENOSPC, n <= 16384)",
        "ok",
        stdout="True True\n",
    ),
    hostile(
        "many-names",
        "creates directories and links without end",
        "n = 0\nopen('/tmp/a', 'w').close()\ntry:\n    while True:\n        os.mkdir(f'/tmp/{n}')\n"
        "        os.link('/tmp/a', '/tmp/' + 'l' * 200 + str(n))\n        n += 1\nexcept OSError: pass",
        limits={"wall_seconds": 2},
    ),
    hostile(
        "file-locks",
        "locks ranges of a file without end",
        "import fcntl\nfd = os.open('/tmp/a', os.O_RDWR | os.O_CREAT)\nn = 0\ntry:\n    while True:\n"
        "        fcntl.lockf(fd, fcntl.LOCK_EX if n % 2 else fcntl.LOCK_SH, 1, 2 * n)\n        n += 1\n"
        "except OSError: pass",
        limits={"wall_seconds": 2},
    ),
    hostile(
        "event-descriptors",
        "creates events, timers and pollers without end, and a watch of files",
        "def count(create, *arguments):\n    made = []\n"
        "    while (fd := create(*arguments)) >= 0: made.append(fd)\n"
        "    print(len(made) < 64, ctypes.get_errno() == errno.EMFILE)\n    for fd in made: os.close(fd)\n"
        "count(libc.eventfd, 1, 0)\ncount(libc.timerfd_create, 1, 0)\ncount(libc.epoll_create1, 0)\n"
        "print(libc.inotify_init() < 0)",
        "ok",
        stdout="True True\n" * 3 + "True\n",
    ),
    hostile(
        "pipe-buffers",
        "fills the largest buffers of pipes",
        "import fcntl\nn, kept = 0, []\ntry:\n    while True:\n        kept.append(os.pipe())\n"
        "        try: fcntl.fcntl(kept[-1][1], 1031, 1 << 20)\n        except OSError: pass\n"
        "        os.set_blocking(kept[-1][1], False)\n        try:\n"
        "            while True: n += os.write(kept[-1][1], bytes(65536))\n        except BlockingIOError: pass\n"
        "except OSError: print(n <= 64 << 20)",
        "ok",
        stdout="True\n",
    ),
    hostile(
        "queued-signals",
        "queues signals without end",
        "signal.pthread_sigmask(signal.SIG_BLOCK, range(34, 64))\nn = 0\ntry:\n    while True:\n"
        "        os.kill(os.getpid(), 40)\n        n += 1\n"
        "except OSError as e: print(e.errno == errno.EAGAIN, n < 10_000)",
        "ok",
        stdout="True True\n",
    ),
    hostile(
        "memory-maps",
        "creates mappings without end",
        "import mmap\nkept = []\ntry:\n    while True:\n"
        "        kept.append(mmap.mmap(-1, 4096, prot=1 + 2 * (len(kept) % 2)))\nexcept (OSError, MemoryError): pass",
        limits={"wall_seconds": 2},
    ),
    hostile(
        "unaccepted-connections",
        "opens connections that no program accepts",
        "listener = socket.create_server(('127.0.0.1', 0), backlog=4096)\nwhile True:\n    s = socket.socket()\n"
        "    s.setblocking(False)\n    s.connect_ex(listener.getsockname())\n    s.close()",
        limits={"wall_seconds": 2},
    ),
    hostile(
        "descriptors-in-messages",
        "hides descriptors in messages, where no limit counts them and gVisor never frees them",
        "import array\na, b = socket.socketpair()\nboth = array.array('i', [a.fileno(), b.fileno()])\n"
        "attempt('sendmsg', lambda: a.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, both)]))\n"
        "call('sendmmsg', 307, a.fileno(), ctypes.create_string_buffer(64), 1, 0)",
        "ok",
    ),
]
