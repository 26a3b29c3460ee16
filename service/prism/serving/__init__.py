"""The only room that imports KServe: its server, its flags, its model, and the front that decides who answers a path.

KServe reads `sys.argv` when its server module is first imported, with abbreviations allowed: `--model /mnt/models`
would become its `--model_name`, and an abbreviation of two of its flags would end the process. So it is imported here,
before anything else of this package, with an empty command line; `kserve_flags` gives its values back later.
"""

import sys

_given, sys.argv = sys.argv, sys.argv[:1]
try:
    import kserve.model_server  # noqa: F401 - for what its import does
finally:
    sys.argv = _given

__all__: list[str] = []
