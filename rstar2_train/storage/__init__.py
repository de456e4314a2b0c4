"""Objects in a bucket or in a local folder, and publications that need no rename.

- `store`: the interface, its errors, the rules of names.
- `bucket`: a bucket of S3, Google Cloud Storage, Azure or an S3-compatible server, by obstore.
- `folder`: the same interface on a local folder.
- `retries`: repetition of failed requests, bounded in time.
- `manifest`: the documents of a publication, with their digests. Pure.
- `publication`: writes publications: objects, then a manifest, then the index that makes them visible.
- `verified_read`: reads publications: every block is compared with its digest.
- `source`: downloads the object or prefix of a `source` or `data` field into a folder.
- `probe`: tries the operations that publications need.

    publication ───┐                      ┌─> bucket.Bucket ─> retries, obstore
    verified_read ─┴─> store.ObjectStore ─┴─> folder.LocalFolder
    source, probe ─┘

A reader of publications trusts manifests only. It never lists objects: a listing contains torn uploads.
"""
