"""`python -m perdure` is the command line."""

import sys

from perdure.cli import main

sys.exit(main())
