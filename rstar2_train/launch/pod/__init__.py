"""What runs in a job's pods around the driver: `python -m rstar2_train.launch.pod prepare|launch|report`."""
