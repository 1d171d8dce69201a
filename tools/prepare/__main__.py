import sys

from prepare.command import main

sys.exit(main())
