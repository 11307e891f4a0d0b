"""A script that resumes by torchrun's restart count. Rank 0 fails until it has been restarted twice, and notes what it saw each time.
The other rank does not fail, because its end could cut the note short.

Arguments: a folder for the notes.
"""

import json
import os
import pathlib
import sys

RESTARTS = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if os.environ["RANK"] == "0":
    folder = pathlib.Path(sys.argv[1])
    note = folder / f"{len(list(folder.glob('*.json')))}.json"
    note.with_suffix(".part").write_text(json.dumps([RESTARTS, os.environ["TORCHELASTIC_RUN_ID"]]))
    note.with_suffix(".part").rename(note)
    sys.exit(0 if RESTARTS >= 2 else 3)
