"""The crates of other authors that are linked into the shipped programs, as cargo knows them."""

import json
import subprocess

SHIPPED = ("muster-cli", "muster-agent", "muster-coordinator", "muster-runner")


class Wrong(Exception):
    """cargo cannot say it."""


def linked(root, target):
    """The crates, in the order of their names: not what only builds or tests need. Each has `needs`, the ids of those that it is linked with."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", target]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if done.returncode != 0:
        raise Wrong(f"{' '.join(command)} failed: {done.stderr.strip()}")
    known = json.loads(done.stdout)
    crates = {crate["id"]: crate for crate in known["packages"]}
    needs = {node["id"]: [need["pkg"] for need in node["deps"] if any(kind["kind"] is None for kind in need["dep_kinds"])] for node in known["resolve"]["nodes"]}
    found, ahead = set(), [key for key, crate in crates.items() if crate["name"] in SHIPPED]
    while ahead:
        key = ahead.pop()
        if key not in found:
            found.add(key)
            ahead += needs[key]
    others = [crates[key] | {"needs": needs[key]} for key in found if crates[key]["source"]]
    return sorted(others, key=lambda crate: (crate["name"], crate["version"]))
