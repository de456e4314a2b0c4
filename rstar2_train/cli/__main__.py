"""`python -m rstar2_train.cli`: the `rstar2` command."""

import sys

from rstar2_train.cli.main import main

sys.exit(main())
