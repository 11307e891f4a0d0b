"""Prints numbered lines. With --endless the first generation prints until it is killed. Every other one prints the requested number. With
--bar it draws a progress bar instead, and leaves it at 50% until a file is there."""

import argparse
import os
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("--lines", type=int, default=50)
parser.add_argument("--endless", action="store_true")
parser.add_argument("--bar")
args = parser.parse_args()

if args.bar:
    print("\r 10%\r 50%", end="", file=sys.stderr, flush=True)
    while not os.path.exists(args.bar):
        time.sleep(0.01)
    print("\r100%", file=sys.stderr)
    sys.exit()

generation, rank = os.environ["MUSTER_GENERATION"], os.environ["RANK"]
endless = args.endless and generation == "1"
number = 0
while endless or number < args.lines:
    number += 1
    stream = sys.stderr if number % 5 == 0 else sys.stdout
    print(f"generation={generation} rank={rank} line={number}", file=stream, flush=True)
    if endless:
        time.sleep(0.005)
