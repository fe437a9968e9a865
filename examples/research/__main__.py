"""`python -m examples.research`."""

from examples.research.chaos import main

raise SystemExit(main())
