"""`python -m examples.memory_chat`."""

from examples.memory_chat.play import main

raise SystemExit(main())
