"""Horovod on several nodes: each rank has a part of the data, and all fit one line through it."""

import json
import os
import sys
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import horovod.tensorflow as hvd  # noqa: E402
import tensorflow as tf  # noqa: E402

folder, steps = sys.argv[1], int(sys.argv[2])
hvd.init()
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
x = tf.constant([number / 64 for number in range(hvd.rank(), 256, hvd.size())], tf.float64)
line = tf.Variable([0.0, 0.0], dtype=tf.float64)

saved = os.path.join(folder, "line.json")
state = {"step": 0, "line": [0.0, 0.0]}
if hvd.rank() == 0 and os.path.exists(saved):
    with open(saved, encoding="utf-8") as file:
        state = json.load(file)
state = hvd.broadcast_object(state)
step = state["step"]
line.assign(state["line"])
while step < steps:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((line[0] * x + line[1] - (3 * x + 1)) ** 2)
    [slope] = hvd.DistributedGradientTape(tape).gradient(loss, [line])
    line.assign_sub(0.05 * slope)
    step += 1
    if hvd.rank() == 0:
        print(f"step {step} world {hvd.size()}", flush=True)
        if step % 5 == 0:
            with open(saved + ".part", "w", encoding="utf-8") as part:
                json.dump({"step": step, "line": line.numpy().tolist()}, part)
            os.replace(saved + ".part", saved)
    time.sleep(0.1)
if hvd.rank() == 0:
    print("end", repr(float(tf.reduce_sum(line))), flush=True)
