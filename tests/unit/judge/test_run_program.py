"""How a call runs its code: as `python FILE`, or as a notebook cell. Each test starts a process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rstar2_train.judge.executor import run_program

RUNNER = """
import json, sys
sys.path.insert(0, {folder!r})
import run_program
run_program.replace_stdout()
sys.path[0] = ""
run_program.cap_stack_size(64 << 20)
kind, *sources = json.loads(sys.argv[1])
if kind == "session":
    sources = iter(sources)
    def next_cell(status):
        print(f"[{{status}}]", flush=True)
        for source in sources:
            return source.encode()
        raise SystemExit
    run_program.run_session(next(sources), next_cell)
status = run_program.run_call(sources[0], to_the_end=True, run=run_program.run_script if kind == "script" else None)
import os
os._exit(status & 0xFF)
"""


ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


def run(kind: str, *sources: str, folder: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a script, a cell, or the cells of a session."""
    runner = RUNNER.format(folder=str(Path(run_program.__file__).parent))
    command = [sys.executable, "-P", "-X", "utf8", "-c", runner, json.dumps([kind, *sources])]
    options = {"capture_output": True, "text": True, "timeout": 60, "env": ENVIRONMENT}
    return subprocess.run(command, input=stdin, cwd=folder, check=False, **options)


def texts(folder: Path) -> dict[str, str]:
    """Return the texts of the files in a folder."""
    return {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}


SCRIPTS = {
    "plain": "print(1)",
    "last-value": "import sys\nsys.stdout.write('42')",
    "last-expression": "print(42, end='')\n7",
    "mark-of-encoding": "\N{ZERO WIDTH NO-BREAK SPACE}print(1)",
    "module-next-to-it": "open('helper.py', 'w').write('x = 5')\nimport helper\nprint(helper.x)",
    "stdout-closed": "import sys\nprint(1)\nsys.stdout.close()",
    "descriptor-closed": "import os\nprint(1, flush=True)\nos.close(1)",
    "descriptor-closed-early": "import os\nprint(1)\nos.close(1)",
    "stdout-none": "import sys\nprint(1)\nsys.stdout = None\nprint(2)",
    "stdout-replaced": "import io, sys\nprint(1)\nsys.stdout = io.StringIO()\nprint(2)",
    "stdout-wrapped": "import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding='utf-8')\nprint('é')",
    "stdout-detached": "import sys\nb = sys.stdout.detach()\nb.write(b'x')",
    "stdout-rewrapped": "import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.detach(), 'utf-8')\nprint(1)",
    "stderr-rewrapped": "import codecs, sys\nsys.stderr = codecs.getwriter('utf8')(sys.stderr.detach())\nprint(1)",
    "stdout-deleted": "import sys\nprint(1)\ndel sys.stdout",
    "main-deleted": "import sys\nprint(1)\ndel sys.modules['__main__']",
    "exit-large": "import sys\nsys.exit(2**70)",
    "annotations": "print(__annotations__)",
    "stdout-without-flush": "import sys\nclass S:\n    def write(self, t): return len(t)\nsys.stdout = S()\nprint(2)",
    "file-not-closed": "f = open('out', 'w')\nf.write('text')\nimport atexit\natexit.register(lambda: print('bye'))",
    "del-at-exit": "class A:\n    def __del__(self): print('deleted')\na = A()",
    "del-in-order": "class A:\n    def __init__(self, n): self.n = n\n    def __del__(self): print(self.n, N)\n"
    "b = A(1)\n_a = A(2)\nN = 3",
    "del-without-functions": "import threading\nclass A(threading.local): __del__ = print\nb = A(); c = 3",
    "daemon-thread": "import threading, time\nthreading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n"
    "print(1)",
    "thread": "import threading, time\ne = threading.Event()\n"
    "threading.Thread(target=lambda: (e.wait(), time.sleep(.1), print(2))).start()\nprint(1)\ne.set()",
    "exit-status": "raise SystemExit(3)",
    "exit-text": "import sys\nprint(1)\nsys.exit('no')",
    "exit-text-without-stderr": "import sys\nprint(1)\nsys.stderr = None\nsys.exit('no')",
    "hook-fails": "import atexit, sys\natexit.register(print, 'bye')\nsys.excepthook = lambda *_: 1 / 0\n{}['k']",
    "hook-exits": "import sys\nsys.excepthook = lambda *_: sys.exit(9)\n{}['k']",
    "hook-deleted": "import sys\ndel sys.excepthook\n{}['k']",
    "atexit-fails": "import atexit\natexit.register(lambda: 1 / 0)\nprint(1)",
    "stdin": "import sys\nprint(sum(map(int, sys.stdin.read().split())))\nprint(open('/dev/stdin').read() == '')",
    "device-stdin": "print(open('/dev/stdin').read())",
    "stack-size": "import threading\nthreading.stack_size(2**29)\nt = threading.Thread(target=print, args=(1,))\n"
    "t.start(); t.join()",
    "await": "import asyncio\nawait asyncio.sleep(0)",
    "magic": "%time 1",
    "display": "display(1)",
    "io-wrapper": "import os, sys\nclass W:\n    def __init__(self): self.t = ''\n    def write(self, t): self.t += t\n"
    "    def flush(self): os.write(1, self.t.encode()); self.t = ''\nsys.stdout = W()\nprint(3)",
}


@pytest.mark.parametrize("source", SCRIPTS.values(), ids=SCRIPTS)
def test_script_ends_as_in_cpython(tmp_path: Path, source: str) -> None:
    """Output, exit status, files, and the last line of the error are those of `python FILE`."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder in (ours, theirs):
        folder.mkdir()
    (theirs / "program.py").write_text(source, encoding="utf-8")
    expected = subprocess.run(
        [sys.executable, "-X", "utf8", "program.py"],
        capture_output=True, text=True, input="3 4\n", cwd=theirs, check=False, timeout=60, env=ENVIRONMENT,
    )  # fmt: skip
    result = run("script", source, folder=ours, stdin="3 4\n")
    assert (result.returncode, result.stdout) == (expected.returncode, expected.stdout)
    assert result.stderr.splitlines()[-1:] == expected.stderr.splitlines()[-1:]
    (theirs / "program.py").unlink()
    assert texts(ours) == texts(theirs)


CELLS = {
    "value-on-its-own-line": ("import sys\nsys.stdout.write('42')", "42\n2\n"),
    "value-after-open-line": ("print(42, end='')\n7", "42\n7\n"),
    "value-after-full-line": ("print(42)\n7", "42\n7\n"),
    "value-after-bytes": ("import sys\nsys.stdout.buffer.write(b'a')", "a\n1\n"),
    "no-value": ("print(42, end='')\nNone", "42"),
    "semicolon": ("1 + 1;", ""),
    "semicolon-after-hash": ("print('#'); '#é';", "#\n"),
    "semicolon-before-comment": ("(1 +\n 1\n);  # two", ""),
    "indented": ("\n  # sum\n  x = 1\n  for i in range(2):\n    x += i\n\n  x", "2\n"),
    "indented-magic": ("\t%time y = 4\n\ty", "4\n"),
    "comment-is-indented": ("  # two\nif 1:\n  print(2)", "2\n"),
    "prompts": (">>> def f():\n...     return 5\n...\n>>> f()", "5\n"),
    "display": ("print(1, end='')\ndisplay('a', None, metadata={})\ndisplay()\n2", "1\n'a'\nNone\n2\n"),
    "display-has-no-value": ("display(3)", "3\n"),
    "display-of-the-program": ("def display(x): print('own', x)\ndisplay(3)", "own 3\n"),
    "no-get-ipython": ("try: get_ipython()\nexcept NameError: print('no notebook')", "no notebook\n"),
    "semicolon-in-comment": ("1 + 1  # a;", "2\n"),
    "await": ("import asyncio\nawait asyncio.sleep(0)\nasync def f(): return 5\nawait f()", "5\n"),
    "await-tasks": ("import asyncio\nsum(await asyncio.gather(*(asyncio.sleep(0, n) for n in range(4))))", "6\n"),
    "async-with": ("import asyncio\nasync with asyncio.Lock() as l:\n    print(l)", "None\n"),
    "matplotlib": ("%matplotlib inline\n%config InlineBackend.figure_format = 'retina'\nprint(1)", "1\n"),
    "autoreload": ("%load_ext autoreload\n%autoreload 2\nprint(1)", "1\n"),
    "time-value": ("x = 3\n%time x + 1", "4\n"),
    "time-assigns": ("%time y = 4\ny", "4\n"),
    "time-target": ("z = %time 2 * 3\nz", "6\n"),
    "time-cell": ("%%time\na = 1\nprint(a)", "1\n"),
    "time-cell-value": ("%%time\n\n5 * 5", "25\n"),
    "time-cell-last-value": ("%%time\na = 5\na * 5", "25\n"),
    "time-quiet": ("%time 5;", ""),
    "time-cell-quiet": ("%%time\n5;", ""),
    "time-cell-await": ("%%time\nimport asyncio\nawait asyncio.sleep(0, 5)", "5\n"),
    "time-cell-magic": ("%%time\n%matplotlib inline\n3", "3\n"),
    "time-continued": ("%time 1 + \\\n 2", "3\n"),
    "timeit-quiet": ("r = %timeit -q -o -n 2 -r 3 1\nr.loops, r.repeat, len(r.timings)", "(2, 3, 3)\n"),
    "cd": ("%cd -q '/tmp'\n%pwd", "'/tmp'\n"),
    "numbered-prompts": ("In [1]: def f():\n   ...:     return 5\n\nIn [2]: f()", "5\n"),
    "time-in-loop": ("for i in range(2):\n    %time print(i)", "0\n1\n"),
    "percent-is-no-magic": ("x = (7\n%4)\nx", "3\n"),
    "percent-in-text": ("x = '''\n%time 1\n'''\nlen(x)", "9\n"),
    "writefile": ("%%writefile m.py\nx = 5\n", "Writing m.py\n"),
    "writefile-quoted": ("%%file 'm n.py'\nx = 5\n", "Writing m n.py\n"),
}


@pytest.mark.parametrize(("source", "output"), CELLS.values(), ids=CELLS)
def test_cell_runs_as_in_jupyter(tmp_path: Path, source: str, output: str) -> None:
    """Values, await and magics of a cell; the lines of a measured time are left out."""
    result = run("cell", source, folder=tmp_path)
    lines = [
        line for line in result.stdout.splitlines(keepends=True) if not line.startswith(("CPU times", "Wall time"))
    ]
    assert (result.returncode, "".join(lines), result.stderr) == (0, output, "")


def test_cell_timeit_prints_mean_and_deviation(tmp_path: Path) -> None:
    """`%timeit` chooses the number of loops, or takes it from its options."""
    result = run("cell", "x = 1\n%timeit x + x\n%timeit -n 10 -r 3 x + x\n%%timeit", folder=tmp_path)
    assert "%%timeit" in result.stderr
    result = run("cell", "x = 1\n%timeit x + x\n%timeit -n 10 -r 3 x + x", folder=tmp_path)
    first, second = result.stdout.splitlines()
    assert "per loop (mean ± std. dev. of 7 runs, 1" in first
    assert second.endswith("per loop (mean ± std. dev. of 3 runs, 10 loops each)")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("!ls -la", "!ls -la is not available: the sandbox has no shell: use Python."),
        ("files = !ls", "!ls is not available"),
        ("!pip install x", "packages cannot be installed: the sandbox has no network."),
        ("%pip install x", "%pip is not available: packages cannot be installed"),
        ("pip install x", "packages cannot be installed: the sandbox has no network."),
        ("!python3 -m pip install x", "packages cannot be installed: the sandbox has no network."),
        ("%prun f()", "%prun is not available: this sandbox has %time, "),
        ("%run f.py", "%run is not available: use runpy.run_path(...), or import the file."),
        ("%%bash\nls", "%%bash is not available: the sandbox has no shell: use Python."),
        ("%%html\nx", "%%html is not available: this sandbox has %%time, "),
        ("%%time x = 1\ny", "%%time has no statement in its line: write it below, or use %time."),
        ("%%writefile\nx", "%%writefile needs the name of one file, not ''."),
        ("%cd -", "%cd - is not available: name the folder."),
        ("print?", "print? is not available: use help(...)."),
        ("?print", "?print is not available: use help(...)."),
    ],
)
def test_cell_refuses_other_magics(tmp_path: Path, source: str, message: str) -> None:
    """A shell command or a magic that is not available is an error with the remedy, after the lines before it."""
    result = run("cell", f"print(1)\n{source}" if "%%" not in source else source, folder=tmp_path)
    assert result.returncode == 1 and message in result.stderr.splitlines()[-1]
    assert result.stdout == ("" if "%%" in source else "1\n")


def test_cell_refuses_cell_magics_below_code(tmp_path: Path) -> None:
    """As in IPython: the lines before it run, and the error states where it belongs."""
    result = run("cell", "print(1)\n%%time\nx = 1", folder=tmp_path)
    assert result.returncode == 1 and result.stdout == "1\n"
    assert result.stderr.endswith("%%time is not available here: a cell magic is the first line of its cell.\n")


def test_time_cell_error_has_its_line(tmp_path: Path) -> None:
    """The traceback of a timed cell counts the line of the magic."""
    assert 'File "<snippet>", line 3, in' in run("cell", "%%time\nx = 1\n1 / 0", folder=tmp_path).stderr


def test_session_future_import_lasts(tmp_path: Path) -> None:
    """A `from __future__ import` of one cell holds in all later ones, also if the cell fails after it."""
    cells = ("from __future__ import annotations\n1 / 0", "def f(x: NotYet): ...\nf.__annotations__['x']", "2")
    result = run("session", *cells, folder=tmp_path)
    assert result.stdout == "[1]\n'NotYet'\n[0]\n2\n[0]\n"


def test_cell_writefile_overwrites_and_appends(tmp_path: Path) -> None:
    """As in IPython: the option -a is no part of the name."""
    cells = (
        "%%writefile a.py\nx = 1",
        "%%writefile -a a.py\nx = 2",
        "%%writefile --append b.py\ny",
        "%%writefile b.py\n\n\nz",
    )
    done = run("session", *cells, folder=tmp_path).stdout
    assert done.replace("[0]\n", "") == "Writing a.py\nAppending to a.py\nAppending to b.py\nOverwriting b.py\n"
    assert texts(tmp_path) == {"a.py": "x = 1\nx = 2\n", "b.py": "\n\nz\n"}


def test_session_cells_share_a_loop(tmp_path: Path) -> None:
    """A task that one cell starts continues in the next one that awaits."""
    cells = (
        "import asyncio\nt = asyncio.ensure_future(asyncio.sleep(0, 7))\nawait asyncio.sleep(0)",
        "print('x', end='')",
        "await t",
    )
    assert run("session", *cells, folder=tmp_path).stdout == "[0]\nx[0]\n7\n[0]\n"


def test_session_survives_a_closed_stdout(tmp_path: Path) -> None:
    """A cell that closes or replaces its streams, or whose hook for exceptions fails, does not end the session."""
    cells = (
        "import sys\nsys.excepthook = lambda *_: 1 / 0\n{}['k']",
        "import io, sys\nold = sys.stdout\nsys.stdout = io.StringIO()\nprint(1)",
        "sys.stdout = old\nprint(2)\nsys.stderr.close()\nsys.exit('no')",
        "print(3)",
    )
    assert run("session", *cells, folder=tmp_path).stdout.endswith("2\n[1]\n3\n[0]\n")
