"""The program that runs inside a sandbox. Standard library only; it is copied into the sandbox's root.

    jail.py (pods only) ──exec──▶ program.py ──fork──▶ zygote per lane ──forkserver.so──▶ process per call

- `jail.py`: puts the program into new namespaces with a root of its own, inside an executor pod.
- `program.py`: starts a zygote per lane, warms it up, and receives calls in its forks.
- `run_program.py`: runs the code of a call as a script, or as notebook cells. `magics.py`: the magics of cells.
- `forkserver.c`: the loop of a zygote: forks a process per call, feeds, limits and reaps it, and reports its end.
- `child.c`: confines the forked process before it runs untrusted code.
- `forkserver.h`: the wire format between worker and zygote, and declarations that both C files share.
"""
