"""Model of `storage`: the claim or the bucket of a job, and the server of buckets."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from rstar2_train.api.base import ENDPOINT, LABEL, SET, STORE, ApiModel, ObjectName, Quantity

AccessMode = Literal["ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"]


class StorageSpec(ApiModel):
    """Storage for checkpoints, trajectories and reports: a claim or a bucket. Default of `rstar2 run`: a folder."""

    url: Annotated[str, StringConstraints(pattern=STORE, max_length=512)] | None = None
    """Bucket of the job's state: s3://BUCKET/PREFIX, also gs://, az://, and file:///FOLDER with `rstar2 run`."""
    claim_name: ObjectName | None = None
    """Existing PersistentVolumeClaim to use. Default: the operator creates a claim for the job."""
    size: Quantity | None = None
    """Size of the created claim (default: 100Gi) or, with url, of a pod's cache (default: no limit); may only grow."""
    storage_class_name: ObjectName | None = None
    """StorageClass of the created claim. Default: the cluster's default class."""
    access_modes: Annotated[list[AccessMode], Field(min_length=1, max_length=3), SET] = ["ReadWriteMany"]
    """Access modes of the created claim. A job on more than one node needs ReadWriteMany."""
    reclaim_policy: Literal["Retain", "Delete"] = "Retain"
    """Retain: the created claim stays when the job is deleted. Delete: it is deleted too. claimName always stays."""
    endpoint_url: Annotated[str, StringConstraints(pattern=ENDPOINT, max_length=256)] | None = None
    """Address of the server of s3:// URLs. Default: that of AWS, or AWS_ENDPOINT_URL of secretRefs.storage."""
    region: Annotated[str, StringConstraints(pattern=LABEL, max_length=63)] | None = None
    """Region of s3:// URLs. Default: AWS_REGION of secretRefs.storage, else us-east-1."""
    addressing: Literal["Path", "VirtualHost"] = "Path"
    """Place of the bucket's name in requests to endpointUrl: in the path, or in the host name."""
