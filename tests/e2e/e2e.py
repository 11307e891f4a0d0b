"""The whole life of Muster in the Kubernetes cluster that KUBECONFIG names: install, train, break things, upgrade, uninstall.

`make e2e` runs this. It needs kubectl, the program `muster`, three nodes or more, and images that these nodes can get. Each step is checked
and prints one line with its time. The first step that fails ends the story. At the end nothing of Muster is left in the cluster, unless
--keep says so. It refuses a cluster in which Muster is installed already.
"""

import argparse
import os
import shutil
import signal
import sys
import time

from cluster import ROOT, Kubectl, NotSo, NotTested, scratch
from gpus import Gpus
from story import Story


def main():
    options = parse_options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = scratch()
    story = (Gpus if options.simulated_gpus else Story)(options, Kubectl(options.kubectl), folder)
    lines, code, began = [], 1, time.monotonic()
    try:
        code = tell(story, lines)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        code = 130
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if not story.cleaned_up(keep=options.keep):
            code = code or 1
    print(f"\n{'all of it was so' if code == 0 else 'FAILED'}: {summary(lines)}, {time.monotonic() - began:.0f} s in all")
    if code == 0 and not options.keep:
        shutil.rmtree(folder)
    else:
        print(f"what was applied, and the command line's configuration, are in {folder}", file=sys.stderr)
    return code


def tell(story, lines):
    """0 if every step that could be tested was so."""
    for name, step in story.steps():
        began = time.monotonic()
        try:
            said = step()
            outcome = "ok"
        except NotTested as why:
            said, outcome = why, "NOT TESTED"
        except NotSo as problem:
            said, outcome = problem, "FAILED"
        lines.append(outcome)
        print(f"{outcome:>10}  {time.monotonic() - began:6.1f} s  {name}: {said}", flush=True)
        if outcome == "FAILED":
            story.show_evidence()
            return 1
    return 0


def summary(lines):
    return ", ".join(f"{lines.count(outcome)} {outcome}" for outcome in ("ok", "NOT TESTED", "FAILED") if outcome in lines) or "no step"


def parse_options():
    parser = argparse.ArgumentParser(prog="tools/e2e", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--simulated-gpus", action="store_true", help="the story of GPUs that break (gpus.py), in place of the other; the nodes need no GPU")
    add("--overlay", metavar="DIR", help="what to install [manifests/overlays/demo, with --simulated-gpus tests/e2e/hardware]")
    for name in ("agent", "coordinator", "workers", "hardware"):
        variable = f"MUSTER_IMAGE_{name.upper()}"
        add(f"--image-{name}", default=os.environ.get(variable), metavar="IMAGE", help=f"in place of the overlay's [${variable}]")
    for name in ("agent", "coordinator"):
        add(f"--new-image-{name}", metavar="IMAGE", help="what the upgrade installs [the same again]")
    add("--python", default="python3", help="the interpreter with torch, numpy and scikit-learn in the workers' image [python3]")
    add("--host-dir", action="append", default=[], metavar="DIR", help="with --simulated-gpus: a folder of the nodes that workers see, as one with torch")
    add("--checkpoints", default="/tmp/muster-e2e", metavar="DIR", help="where workers keep them; shared or not [/tmp/muster-e2e]")
    add("--gpus-per-node", type=int, default=0, metavar="N", help="GPUs that the jobs ask for [0: train with the processors]")
    add("--partition", metavar="COMMAND", help="cuts a node off the network, as 'ssh {node} ...'; no shell reads it")
    add("--heal", metavar="COMMAND", help="undoes --partition")
    add("--node-down", metavar="COMMAND", help="cuts a node's power")
    add("--node-up", metavar="COMMAND", help="undoes --node-down")
    add("--api-down", metavar="COMMAND", help="stops the API server")
    add("--api-up", metavar="COMMAND", help="undoes --api-down")
    add("--kubelet-restart", metavar="COMMAND", help="restarts a node's kubelet, as 'ssh {node} systemctl restart kubelet'")
    add("--patience", type=int, default=300, metavar="SECONDS", help="the longest wait for one thing, as images that are pulled [300]")
    add("--kubectl", default=os.environ.get("KUBECTL", "kubectl"), metavar="COMMAND", help="[$KUBECTL, else kubectl]")
    add("--muster", default=str(ROOT / "target/muster/bin/muster"), metavar="PROGRAM", help="[target/muster/bin/muster]")
    add("--only", default="", metavar="PATTERN", help="besides those that all need, only the steps whose names match")
    add("--keep", action="store_true", help="leave everything as it is at the end")
    options = parser.parse_args()
    options.overlay = options.overlay or str(ROOT / ("tests/e2e/hardware" if options.simulated_gpus else "manifests/overlays/demo"))
    if options.simulated_gpus and not (options.image_workers and options.image_hardware):
        parser.error("--simulated-gpus needs --image-workers and --image-hardware")
    if not os.access(options.muster, os.X_OK):
        parser.error(f"{options.muster} is not there: run make build first")
    for there, back in (("partition", "heal"), ("node_down", "node_up"), ("api_down", "api_up")):
        if bool(getattr(options, there)) != bool(getattr(options, back)):
            parser.error(f"--{there} and --{back} belong together".replace("_", "-"))
    return options


if __name__ == "__main__":
    sys.exit(main())
