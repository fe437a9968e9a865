"""`python -m perdure` is the command line."""

import sys

from perdure.command_line import main

sys.exit(main())
