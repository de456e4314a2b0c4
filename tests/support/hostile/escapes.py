"""Attacks on the isolation from the host: its files, root, namespaces, users, devices and kernel."""

from tests.support.hostile.model import hostile

ESCAPES = [
    hostile("host-files", "reads files of the host", "for f in FILES: attempt(f, lambda: os.stat(f))", "ok"),
    hostile(
        "host-root",
        "lists entries of the host's root directory",
        "print(sorted(os.listdir('/')))",
        "ok",
        stdout="['dev', 'etc', 'lib', 'lib64', 'opt', 'proc', 'sys', 'tmp']\n",
    ),
    hostile(
        "proc-root",
        "escapes through /proc/PID/root and /proc/PID/cwd",
        "for pid in range(64):\n    for f in FILES: attempt(f, lambda: os.stat(f'/proc/{pid}/root{f}'))",
        "ok",
    ),
    hostile(
        "dot-dot",
        "escapes through a long relative path",
        "for f in FILES: attempt(f, lambda: os.stat('../' * 64 + f))",
        "ok",
    ),
    hostile(
        "symlink",
        "escapes through a symbolic link in /tmp",
        "for n, f in enumerate(FILES):\n    os.symlink(f, f'/tmp/{n}')\n    attempt(f, lambda: os.stat(f'/tmp/{n}'))",
        "ok",
    ),
    hostile(
        "write-anywhere",
        "writes outside its own /tmp and /dev/shm",
        "for folder, _, _ in os.walk('/'):\n"
        "    if not folder.startswith(('/proc', '/tmp', '/dev/shm')):\n"
        "        attempt(folder, lambda: open(folder + '/probe', 'w').close())",
        "ok",
        limits={"wall_seconds": 60},
    ),
    hostile(
        "poison-library",
        "changes a file that every later call imports",
        "attempt('append', lambda: open(os.__file__, 'a'))\n"
        "attempt('replace', lambda: os.rename(os.__file__, '/tmp/os.py'))\n"
        "attempt('unlink', lambda: os.unlink(os.__file__))\nattempt('chmod', lambda: os.chmod(os.__file__, 0o777))",
        "ok",
    ),
    hostile(
        "mount",
        "mounts file systems, in its own namespaces and in new ones",
        "for kind in (b'proc', b'sysfs', b'tmpfs', b'9p', b'ext4', b'overlay'):\n"
        "    if libc.mount(kind, b'/tmp', kind, 0, None) == 0: breach(kind)\n"
        "libc.unshare(0x10000000 | 0x00020000)\n"
        "for f in FILES: attempt(f, lambda: os.stat(f))\n"
        "libc.umount2(b'/proc', 2); libc.umount2(b'/tmp', 2)\n"
        "for f in FILES: attempt(f, lambda: os.stat(f))\n"
        "libc.umount2(b'/', 2)\nfor f in FILES: attempt(f, lambda: os.stat(f))",
    ),
    hostile("chroot", "changes its root directory", "if libc.chroot(b'/tmp') == 0: breach('chroot')", "ok"),
    hostile("pivot-root", "replaces its root file system", "call('pivot_root', 155, b'/tmp', b'/tmp')", "ok"),
    hostile(
        "setns",
        "joins namespaces of other processes",
        "for pid in [*range(1, 64), 'self']:\n"
        "    for kind in ('mnt', 'pid', 'net', 'user', 'ipc'):\n"
        "        try: fd = os.open(f'/proc/{pid}/ns/{kind}', os.O_RDONLY)\n"
        "        except OSError: continue\n"
        "        libc.setns(fd, 0)\n"
        "for f in FILES: attempt(f, lambda: os.stat(f))",
    ),
    hostile(
        "become-root",
        "takes another user's identity, or capabilities",
        "for name in ('setuid', 'setgid', 'seteuid'):\n    if getattr(libc, name)(0) == 0: breach(name)\n"
        "if libc.setgroups(1, (ctypes.c_int * 1)(0)) == 0: breach('setgroups')\n"
        "head = (ctypes.c_uint32 * 2)(0x20080522, 0)\n"
        "call('capset', 126, head, (ctypes.c_uint32 * 6)(*[0xffffffff] * 6))\n"
        "status = dict(l.split(':', 1) for l in open('/proc/self/status') if ':' in l)\n"
        "if int(status['CapEff'], 16) or int(status['CapBnd'], 16): breach('capabilities')",
        "ok",
    ),
    hostile(
        "user-namespace-map",
        "maps itself to root, or to several users, in a new user namespace",
        "if libc.unshare(0x10000000) == 0:\n"
        "    for text in ('0 0 4294967295', '0 65534 2', '0 0 1'):\n"
        "        attempt('uid_map', lambda: open('/proc/self/uid_map', 'w').write(text) and text)",
    ),
    hostile(
        "devices",
        "opens or creates devices",
        "import fcntl, stat\n"
        "for name in ('mem', 'kmem', 'port', 'kvm', 'sda', 'vda', 'kmsg'):\n"
        "    attempt(name, lambda: open('/dev/' + name, 'rb'))\n"
        "tap = struct.pack('16sH14x', b'', 1)\n"
        "attempt('tun', lambda: fcntl.ioctl(open('/dev/net/tun', 'r+b', 0), 0x400454CA, tap))\n"
        "attempt('net', lambda: os.stat('/dev/net/tun'))\n"
        "if os.path.exists('/dev/fuse') and os.stat('/dev/fuse').st_rdev == os.makedev(10, 229): breach('fuse')\n"
        "if libc.mount(b'f', b'/tmp', b'fuse', 0, b'fd=0,rootmode=40000,user_id=0,group_id=0') == 0: breach('mount')\n"
        "def node():  # gVisor lets anyone create one; the mount of /tmp forbids to open it\n"
        "    os.mknod('/tmp/mem', stat.S_IFCHR | 0o666, os.makedev(1, 1))\n"
        "    return open('/tmp/mem', 'rb').read(1)\nattempt('node', node)",
        "ok",
    ),
    hostile(
        "kernel-calls",
        "uses system calls that control the kernel",
        "for name, number, *rest in (('init_module', 175, 0, 0, b''), ('finit_module', 313, 0, b'', 0),\n"
        "    ('kexec_load', 246, 0, 0, 0, 0), ('reboot', 169, 0xfee1dead, 672274793, 0x1234567, 0), ('iopl', 172, 3),\n"
        "    ('ioperm', 173, 0, 8, 1), ('bpf', 321, 0, 0, 0), ('perf_event_open', 298, 0, 0, -1, -1, 0),\n"
        "    ('userfaultfd', 323, 0), ('acct', 163, 0), ('swapon', 167, b'/tmp', 0), ('quotactl', 179, 0, 0, 0, 0),\n"
        "    ('open_by_handle_at', 304, -100, b'0' * 16, 0), ('lookup_dcookie', 212, 0, b'', 0)):\n"
        "    call(name, number, *rest)",
        "ok",
    ),
    hostile(
        "host-settings",
        "changes the clock or the host name",
        "call('sethostname', 170, b'x', 1)\ncall('settimeofday', 164, struct.pack('qq', 1, 1), 0)\n"
        "call('clock_settime', 227, 0, struct.pack('qq', 1, 1))",
        "ok",
    ),
    hostile(
        "kernel-files",
        "writes to /proc and /sys",
        "for f in ('/proc/sysrq-trigger', '/proc/sys/kernel/core_pattern', '/proc/sys/kernel/hostname',\n"
        "    '/proc/sys/net/ipv4/ip_forward', '/sys/kernel/uevent_helper', '/proc/self/attr/current'):\n"
        "    attempt(f, lambda: open(f, 'w').write('1'))\n",
        "ok",
    ),
    hostile(
        "set-user-id-files",
        "runs programs with a set-user-id bit",
        "import stat\n"
        "for folder, _, files in os.walk('/opt'):\n"
        "    for f in files:\n"
        "        mode = os.stat(os.path.join(folder, f)).st_mode\n"
        "        if mode & (stat.S_ISUID | stat.S_ISGID): breach(folder, f)\n",
        "ok",
        limits={"wall_seconds": 60},
    ),
    hostile(
        "machine-code",
        "runs its own machine code, from memory and from /tmp",
        "fd = os.memfd_create('x')\nos.write(fd, open(sys.executable or '/opt/python/bin/python3', 'rb').read(64))\n"
        "try: os.execve(fd, ['x'], {})\nexcept OSError: pass\n"
        "print('still confined')",
    ),
    hostile(
        "new-interpreter",
        "starts a new interpreter to lose its limits",
        "code = 'import resource as r; print([r.getrlimit(x)[1] < 1 << 40 for x in (r.RLIMIT_AS, r.RLIMIT_NPROC)])'\n"
        "os.execv('/opt/python/bin/python3', ['python3', '-S', '-c', code])",
        "ok",
        stdout="[True, True]\n",
    ),
]
