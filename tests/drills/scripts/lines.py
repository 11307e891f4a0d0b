"""Prints numbered lines: the first generation until it is killed if --endless, every other one as many as asked for."""

import argparse
import os
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("--lines", type=int, default=50)
parser.add_argument("--endless", action="store_true")
args = parser.parse_args()

generation, rank = os.environ["MUSTER_GENERATION"], os.environ["RANK"]
endless = args.endless and generation == "1"
number = 0
while endless or number < args.lines:
    number += 1
    stream = sys.stderr if number % 5 == 0 else sys.stdout
    print(f"generation={generation} rank={rank} line={number}", file=stream, flush=True)
    if endless:
        time.sleep(0.005)
