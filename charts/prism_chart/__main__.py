"""`python -m prism_chart`: writes what is generated of the chart."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Final

from prism_chart import dashboard, readme, values_schema
from prism_chart.values import CHART

FILES: Final[Mapping[str, Callable[[], str]]] = {
    "README.md": readme.text,
    "values.schema.json": values_schema.text,
    dashboard.FILE: dashboard.text,
}


def main() -> int:
    for name, text in FILES.items():
        path = CHART / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
