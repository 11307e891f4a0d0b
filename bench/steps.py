"""What it costs to look for steps in logs, in MB/s, beside cutting the same bytes into lines.

    python bench/steps.py             half a minute; writes bench/results/steps.json
    python bench/steps.py --write     and its table in bench/results/README.md

The measuring program is steps/examples/cost.rs. It reads in one thread, as a runner does. The inputs are the excerpts of
steps/tests/corpus, repeated, and lines that are made to cost much.
"""

import argparse
import datetime
import json
import pathlib
import subprocess

import report
import scale

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
BEGIN, END = "<!-- steps:begin -->", "<!-- steps:end -->"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the same; it is quick")
    parser.add_argument("--write", action="store_true", help="write the block into bench/results/README.md")
    options = parser.parse_args()
    command = ["cargo", "run", "--locked", "--quiet", "--release", "-p", "muster-steps", "--example", "cost"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    found = {
        "meta": scale.describe(datetime.datetime.now(datetime.timezone.utc)),
        "inputs": [json.loads(line) for line in done.stdout.splitlines()],
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "steps.json").write_text(json.dumps(found, indent=1) + "\n")
    page = block(found)
    print(page)
    if options.write:
        report.rewrite_block(BEGIN, END, page)


def block(found):
    lines = ["| what a rank prints | looked through | a MB costs | beside cutting it into lines |", "| --- | --- | --- | --- |"]
    for one in found["inputs"]:
        lines.append(f"| {one['input']} | {one['mb_per_s']} MB/s | {1000 / one['mb_per_s']:.1f} ms | {one['ratio']:.1f} times |")
    meta = found["meta"]
    lines += ["", f"Measured by `bench/steps.py` on {meta['date'][:10]}, commit {meta['commit']}: one thread, least of five. `{'step step step'}` is made to cost much."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
