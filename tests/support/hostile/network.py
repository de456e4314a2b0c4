"""Attacks over the network and other channels between sandboxes, calls and the host."""

from tests.support.hostile.model import hostile

NETWORK = [
    hostile(
        "connect",
        "connects to listeners of the test, Redis and the API",
        "for a in ADDRESSES: attempt(a, lambda: socket.create_connection(a, 1))",
        "ok",
        limits={"wall_seconds": 60},
    ),
    hostile(
        "datagrams",
        "sends datagrams, among others to a name server",
        "for host, _ in ADDRESSES:\n"
        "    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:\n"
        "        s.settimeout(0.5)\n"
        "        try:\n            s.sendto(b'x', (host, 53))\n            breach(s.recv(10))\n"
        "        except OSError: pass",
        "ok",
        limits={"wall_seconds": 60},
    ),
    hostile(
        "name-resolution",
        "resolves names",
        "for name in ('localhost.localdomain', 'kubernetes.default.svc', 'redis'):\n"
        "    attempt(name, lambda: socket.getaddrinfo(name, 80))",
        "ok",
        limits={"wall_seconds": 60},
    ),
    hostile(
        "interfaces",
        "uses network interfaces other than its own loopback",
        "for _, name in socket.if_nameindex():\n    if name != 'lo': breach(name)",
        "ok",
    ),
    hostile(
        "raw-sockets",
        "opens raw and packet sockets",
        "attempt('packet', lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)))\n"
        "attempt('icmp', lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))",
        "ok",
    ),
    hostile(
        "other-families",
        "opens sockets of other address families",
        "for name in ('AF_VSOCK', 'AF_BLUETOOTH', 'AF_CAN', 'AF_ALG', 'AF_TIPC'):\n"
        "    if hasattr(socket, name): attempt(name, lambda: socket.socket(getattr(socket, name), socket.SOCK_STREAM))",
        "ok",
    ),
    hostile(
        "host-sockets",
        "connects to daemons through their socket files",
        "for f in ('/run/containerd/containerd.sock', '/var/run/docker.sock', '/run/systemd/private', '/dev/log'):\n"
        "    s = socket.socket(socket.AF_UNIX)\n    attempt(f, lambda: s.connect(f) or f)",
        "ok",
    ),
    hostile(
        "network-configuration",
        "adds addresses or routes",
        "import fcntl\ns = socket.socket()\n"
        "address = struct.pack('16sH2s4s8s', b'lo', 2, b'', b'\\x0a\\0\\0\\1', b'')\n"
        "attempt('address', lambda: fcntl.ioctl(s, 0x8916, address))\n"
        "attempt('up', lambda: fcntl.ioctl(s, 0x8914, struct.pack('16sH14s', b'eth0', 1, b'')))",
        "ok",
    ),
    hostile(
        "terminal",
        "opens a terminal, whose other end another call could open",
        "attempt('terminal', lambda: os.open('/dev/ptmx', os.O_RDWR))\nattempt('pair', os.openpty)\n"
        "for name in os.listdir('/dev/pts') if os.path.isdir('/dev/pts') else (): breach(name)",
        "ok",
    ),
    hostile(
        "watch-files",
        "watches which shared files other calls open",
        "call('inotify_init1', {'x86_64': 294, 'aarch64': 26}[os.uname().machine], 0)\n"
        "call('fanotify_init', {'x86_64': 300, 'aarch64': 262}[os.uname().machine], 0, 0)",
        "ok",
    ),
    hostile(
        "rendezvous",
        "connects to an earlier call over an abstract socket or a port",
        "s = socket.socket(socket.AF_UNIX)\nattempt('abstract', lambda: s.connect('\\0meet') or 'there')\n"
        "attempt('port', lambda: socket.create_connection(('127.0.0.1', 7777), 1))",
        "ok",
        before="import os, socket, time\n"
        "if os.fork() == 0:\n    os.setsid()\n    a = socket.socket(socket.AF_UNIX); a.bind('\\0meet'); a.listen()\n"
        "    b = socket.socket(); b.bind(('127.0.0.1', 7777)); b.listen()\n    time.sleep(600)\ntime.sleep(0.2)",
    ),
]
