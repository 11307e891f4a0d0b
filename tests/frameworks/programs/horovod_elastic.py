"""The line of horovod_line.py as a program for Horovod's elastic mode, for any number of ranks: the sum over all data is divided once.

It keeps its state as Horovod's examples do, and saves it to a file too: what is only in memory is lost when Muster starts all again."""

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
line = tf.Variable([0.0, 0.0], dtype=tf.float64)
saved = os.path.join(folder, "line.json")
first = 0
if hvd.rank() == 0 and os.path.exists(saved):
    with open(saved, encoding="utf-8") as file:
        found = json.load(file)
    line.assign(found["line"])
    first = found["step"]


@hvd.elastic.run
def train(state):
    x = tf.constant([number / 64 for number in range(hvd.rank(), 256, hvd.size())], tf.float64)
    while state.step < steps:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((line[0] * x + line[1] - (3 * x + 1)) ** 2) / 256
        slope = hvd.allreduce(tape.gradient(loss, line), op=hvd.Sum, name="slope")
        line.assign_sub(0.05 * slope)
        state.step += 1
        if hvd.rank() == 0:
            print(f"step {state.step} world {hvd.size()}", flush=True)
            if state.step % 5 == 0:
                with open(saved + ".part", "w", encoding="utf-8") as part:
                    json.dump({"step": state.step, "line": line.numpy().tolist()}, part)
                os.replace(saved + ".part", saved)
        time.sleep(0.1)
        state.commit()


# Every rank has the state of rank 0 before it begins.
train(hvd.elastic.TensorFlowState([line], step=first))
if hvd.rank() == 0:
    print("end", repr(float(tf.reduce_sum(line))), flush=True)
