"""Objects in a bucket or in a local folder, publications that need no rename, and the state of jobs in them.

- `store`: the interface, its errors, the rules of names.
- `bucket`: a bucket of S3, Google Cloud Storage, Azure or an S3-compatible server, by obstore.
- `endpoint`: the server of a bucket, and the settings of obstore's client for it.
- `folder`: the same interface on a local folder.
- `retries`: repetition of failed requests, bounded in time.
- `manifest`: the documents of a publication, with their digests. Pure.
- `publication`: writes publications: objects, then a manifest, then the index that makes them visible.
- `verified_read`: reads publications: every block is compared with its digest.
- `state_files`: the files of a job's state folder that are published, and a consistent copy of them.
- `folders`: publishes folders, and copies them to the disks of other machines.
- `host_objects`: the files of checkpoints that are in the bucket alone, such as those that other hosts have uploaded.
- `host_bucket`: the uploads and the reads of a job's hosts.
- `pod_starts`: the starts of a job's pods, which the index of its state orders. Pure.
- `job_state`: restores and publishes the state folder of a job.
- `stage_failure`: the failure of a stage that an error of its bucket causes. Pure.
- `source`: opens the bucket of a job; downloads the object or prefix of a `source` or `data` field into a folder.
- `probe`: tries the operations that publications need.

    job_state, folders ─> publication ───┐                      ┌─> bucket.Bucket ─> retries, obstore
             ├─────────> verified_read ──┼─> store.ObjectStore ─┴─> folder.LocalFolder
        host_bucket      source, probe ──┘

A reader of publications trusts manifests only. It never lists objects: a listing contains torn uploads.
"""
