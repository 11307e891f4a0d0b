"""MultiWorkerMirroredStrategy with a loop of its own: each worker has a part of the data, and all fit one line through it."""

import json
import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")

import tensorflow as tf

folder, steps = sys.argv[1], int(sys.argv[2])
ring = tf.distribute.experimental.CommunicationImplementation.RING
options = tf.distribute.experimental.CommunicationOptions(implementation=ring)
strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
config = json.loads(os.environ["TF_CONFIG"])
cluster, task = config["cluster"], config["task"]
world = sum(len(members) for members in cluster.values())
assert strategy.num_replicas_in_sync == world, (strategy.num_replicas_in_sync, world)
chief = task["type"] == "chief" or ("chief" not in cluster and task["index"] == 0)
with strategy.scope():
    line = tf.Variable([0.0, 0.0])
    step = tf.Variable(0, dtype=tf.int64)
checkpoint = tf.train.Checkpoint(line=line, step=step)
own = "chief" if chief else f"{task['type']}-{task['index']}"
# All save, because saving is a collective. What the chief saved counts.
manager = tf.train.CheckpointManager(checkpoint, os.path.join(folder, own), max_to_keep=2)
if latest := tf.train.latest_checkpoint(os.path.join(folder, "chief")):
    checkpoint.restore(latest).assert_consumed()


@tf.function
def train():
    def one():
        context = tf.distribute.get_replica_context()
        place = tf.cast(context.replica_id_in_sync_group, tf.float32)
        x = tf.linspace(place, place + 1.0, 64)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((line[0] * x + line[1] - (3.0 * x + 1.0)) ** 2)
        gradient = context.all_reduce(tf.distribute.ReduceOp.MEAN, tape.gradient(loss, line))
        line.assign_sub(0.05 * gradient)
        step.assign_add(1)

    strategy.run(one)


while int(step.numpy()) < steps:
    train()
    print(f"step {int(step.numpy())} world {world}", flush=True)
    if int(step.numpy()) % 5 == 0:
        manager.save()
    time.sleep(0.1)
print("end", repr(float(tf.reduce_sum(line.numpy()))), flush=True)
