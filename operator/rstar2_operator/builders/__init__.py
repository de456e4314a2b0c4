"""Pure builders of Kubernetes objects: job, resolved sources and site settings in, plain dicts out. One file per role.

    reconcile.py ──Decision──> objects.py ─┬─> storage.py, config.py, access.py, network.py   always
                                           ├─> trainer.py       Jobs of attempts, preparation, report
                                           └─> redis.py, judge.py, rollout.py, teacher.py, environment.py, agent.py
                                              │
    serving_manifests.py ──> serving.py ──────┴─> endpoint.py                             a served model
                                     all of them ──> pod.py, accelerator.py: the restricted pod, devices

- `objects.py`: the objects of a decision, in the order of their creation.
- `pod.py`: the pod that every role starts from; `patches.py`: runtimePatches; `manifest.py`: resources.
- `accelerator.py`: devices and their tuning.
- `config.py`: job file, progress ConfigMap, Secret; `access.py`: accounts; `network.py`: NetworkPolicies.
"""
