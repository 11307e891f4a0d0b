"""Parameter servers: they hold the line's two numbers, the workers find gradients, and the chief schedules and saves."""

import json
import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")

import tensorflow as tf

folder, steps = sys.argv[1], int(sys.argv[2])
config = json.loads(os.environ["TF_CONFIG"])
task = config["task"]
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if task["type"] != "chief":
    server = tf.distribute.Server(resolver.cluster_spec(), job_name=task["type"], task_index=task["index"], protocol="grpc")
    print("serves", task["type"], task["index"], flush=True)
    server.join()

strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    line = tf.Variable([0.0, 0.0])
step = tf.Variable(0, dtype=tf.int64)
checkpoint = tf.train.Checkpoint(line=line, step=step)
manager = tf.train.CheckpointManager(checkpoint, os.path.join(folder, "chief"), max_to_keep=2)
checkpoint.restore(manager.latest_checkpoint)


@tf.function
def gradient(place):
    x = tf.linspace(place, place + 1.0, 64)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((line[0] * x + line[1] - (3.0 * x + 1.0)) ** 2)
    return tape.gradient(loss, line)


workers = len(config["cluster"]["worker"])
while int(step.numpy()) < steps:
    parts = [coordinator.schedule(gradient, args=(tf.constant(float(place)),)) for place in range(workers)]
    coordinator.join()
    line.assign_sub(0.05 * sum(part.fetch() for part in parts) / workers)
    step.assign_add(1)
    print(f"step {int(step.numpy())} workers {workers}", flush=True)
    if int(step.numpy()) % 5 == 0:
        manager.save()
    time.sleep(0.1)
print("end", repr(float(tf.reduce_sum(line.numpy()))), flush=True)
