"""`python -m rstar2_operator`."""

import sys

from rstar2_operator.main import main

sys.exit(main())
