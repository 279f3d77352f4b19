"""``python -m trainwatch.server.probe [health|ready]``: asks the server on this machine; for containers' health checks.

Exit status 0 when it answers as it should. Uses nothing but the standard library, so that it starts fast.
"""

from __future__ import annotations

import os
import sys
import urllib.error
import urllib.request


def main(arguments: list[str]) -> int:
    """Asks; returns the exit status."""
    what = arguments[0] if arguments else "health"
    if what not in ("health", "ready"):
        sys.stderr.write(f"{what!r} is neither health nor ready\n")
        return 2
    host = os.environ.get("TRAINWATCH_HOST", "") or "127.0.0.1"
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    url = f"http://{host}:{os.environ.get('TRAINWATCH_PORT', '') or '8420'}/api/{what}"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=4) as answer:
            return 0 if answer.status == 200 else 1
    except urllib.error.HTTPError as error:
        sys.stderr.write(error.read(2000).decode("utf-8", "replace") + "\n")
    except OSError as error:
        sys.stderr.write(f"{url} does not answer: {error}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
