"""Writes down, per rank in the folder named first, the locale and encodings that a script finds."""

import json
import locale
import os
import pathlib
import sys

SEEN = {
    "utf8_mode": sys.flags.utf8_mode,
    "variables": {name: value for name, value in os.environ.items() if name == "LANG" or name.startswith("LC_")},
    "locale": locale.setlocale(locale.LC_CTYPE),
    "preferred": locale.getpreferredencoding(False),
    "files": [sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()],
    "streams": [[stream.encoding, stream.errors] for stream in (sys.stdin, sys.stdout, sys.stderr)],
    "opened": open(os.devnull).encoding,
}
folder, rank = pathlib.Path(sys.argv[1]), os.environ["RANK"]
(folder / f"{rank}.part").write_text(json.dumps(SEEN, sort_keys=True))
(folder / f"{rank}.part").rename(folder / f"{rank}.json")
