"""Ends each generation as its argument says: `75,75,train` ends the first two with exit code 75 and prints steps in the third, until it is
told to stop. The last word holds for all later generations."""

import os
import signal
import sys
import time

words = sys.argv[1].split(",")
generation = int(os.environ["MUSTER_GENERATION"])
word = words[min(generation, len(words)) - 1]
if word != "train":
    sys.exit(int(word))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
step = 0
while True:
    step += 1
    print(f"step={step}", flush=True)
    time.sleep(0.05)
