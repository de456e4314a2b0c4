"""The policy: what a job needs now, as a pure function of the job, what was observed, and the time."""
