"""Runs the program: ``python -m netstage run FILE`` is ``netstage run FILE``."""

from __future__ import annotations

import os
import sys

from netstage.program import locate


def main() -> None:
    """Replaces this process by the program, with the same arguments."""
    program = locate()
    if program is None:
        sys.exit(
            "error: this package was built without the program netstage; "
            "install a release wheel, or set NETSTAGE to the path of the program"
        )
    try:
        os.execv(program, [program, *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"error: cannot run {program}: {error.strerror}")


if __name__ == "__main__":
    main()
