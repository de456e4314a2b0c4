"""The rStar2 operator: reconciles AgenticRLJobs into the pods, services and claims that train them.

    API server ──> watch.py ──> cache.py ──observed.py──> decide/ ─Decision─> builders/ ──> apply.py ──> API server
                   resync.py       │                        │                  drift.py
                                   v                        └──> status_writer.py ──> status and Events
                                workqueue.py ──> reconcile.py: one job, one reconciliation at a time

- `main.py`: start-up, leader election, shutdown; `lease.py`: the Lease; `settings.py`: site settings.
- `watch.py`: kopf's handler of the jobs; `informer.py`: watches of the other kinds; both fill the cache.
- `watch_health.py`: the namespaces whose watches fail; `failed_rounds.py`: the status of their jobs.
- `resync.py`: completeness of the cache, and lost events; `cached_object.py`: the form of cached objects.
- `cache.py`: the observed objects of all jobs; `observed.py`: the objects of one job as `decide/` reads them.
- `decide/`: the policy, pure; `builders/`: the objects, pure; `names.py`: names and labels of all objects.
- `reconcile.py`: cache to decision to writes; `reconcile_state.py`: all that is kept about a job between two rounds.
- `desired.py`: spec and desired objects of a job, compressed.
- `apply.py`: server-side apply and deletion; `drift.py`: changes by others; `identity.py`: changes by webhooks that it
  refuses; `shared_secrets.py`: which Secrets exist.
- `status_writer.py`: status and Events; `metrics.py`: Prometheus; `client.py`: HTTP requests to the API server.
- `workqueue.py`: keys with deduplication and backoff; `serving_manifests.py`: objects of `rstar2 serve` on a cluster.
- `uninstall.py`: the hook of `helm uninstall` that deletes all jobs first.
"""
