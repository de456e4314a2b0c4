"""The steps of a GRPO stage, as three cooperating parts with one bounded queue between them.

    problems --> Generator --[queue of batches]--> StepTrainer --> Publisher --> engines
                     ^                                                |
                     +---------------- ServedVersion <----------------+

The generator samples batch s as soon as the engines serve a version that is recent enough for it, and appends each
group to the disk when its last rollout finishes. The trainer takes the batches in order: update, checkpoint, report.
The publisher passes the weights of each step to the engines. With `maxStaleness: 0` the parts take turns: batch s
starts after the engines serve version s.

Modules:

- `generator`        samples, selects and stores the groups of each batch
- `group_log`        the complete groups of an incomplete batch, on disk
- `step_trainer`     one update per batch, with its checkpoint, metrics and triggers
- `publisher`        the weights of each step to the engines
- `staleness`        the staleness of a batch: metrics, and the version that its reward rates
- `served_version`   the newest version that the engines serve; the generator waits for it
"""
