"""python -m tests.conformance.serve: serve the models of a run until Ctrl-C, to try single lines against."""

from __future__ import annotations

import shlex
import sys
import time

from tests.conformance.gateway import serving

with serving() as gateway:
    print("export", *(f"{name}={shlex.quote(value)}" for name, value in gateway.environment.items()))
    sys.stdout.flush()
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        print("".join(gateway.said), file=sys.stderr)
