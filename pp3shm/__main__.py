"""``python -m pp3shm``: the command line."""

import sys

from pp3shm.cli import main

sys.exit(main())
