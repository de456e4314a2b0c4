"""`rstar2 doctor`: what a machine or a cluster has and lacks, each line with the remedy.

- `findings`: one line of the report.
- `machine`: packages, sandbox, queue, memory, accelerators and network of this machine.
- `bucket`: the operations of a bucket that jobs need.
- `cluster`: what jobs need of a Kubernetes cluster, from the answers of kubectl. Pure.

    cli.doctor -> machine.examine(), bucket.examine(source), cluster.examine(get) -> findings
"""
