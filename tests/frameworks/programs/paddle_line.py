"""Paddle on several processes: each has a part of the data, and all fit one line through it. Who they are is read as programs on Baidu's
platforms read it, or is what `paddle.distributed.launch` has told them."""

import os
import sys
import time

# paddle.distributed.launch has set Paddle's own names. The operator of AITrainingJobs has others for the same.
if "TRAINER_HOSTS" in os.environ:
    hosts, index = os.environ["TRAINER_HOSTS"].split(","), os.environ["TRAININGJOB_REPLICA_INDEX"]
    os.environ.update(
        PADDLE_TRAINER_ID=index, PADDLE_TRAINERS_NUM=os.environ["TRAINER_INSTANCES_NUM"], PADDLE_TRAINER_ENDPOINTS=",".join(hosts),
        PADDLE_CURRENT_ENDPOINT=hosts[int(index)], PADDLE_DISTRI_BACKEND="gloo",
    )  # fmt: skip
own, world = int(os.environ["PADDLE_TRAINER_ID"]), int(os.environ["PADDLE_TRAINERS_NUM"])

import paddle
import paddle.distributed as dist

folder, steps = sys.argv[1], int(sys.argv[2])
paddle.set_device("cpu")
dist.init_parallel_env()
# As many points for each, whether there are two or three.
x = paddle.linspace(0, 1, 384)[own::world]
y = 3 * x + 1
saved = os.path.join(folder, "line.pdparams")
state = paddle.load(saved) if os.path.exists(saved) else {"step": 0, "line": paddle.zeros([2])}
step, line = int(state["step"]), state["line"]
while step < steps:
    miss = line[0] * x + line[1] - y
    gradient = paddle.stack([(2 * miss * x).mean(), (2 * miss).mean()])
    dist.all_reduce(gradient)
    line = line - 0.05 * gradient / world
    step += 1
    print(f"step {step} world {world}", flush=True)
    if step % 5 == 0 and own == 0:
        paddle.save({"step": step, "line": line}, saved + ".part")
        os.replace(saved + ".part", saved)
    time.sleep(0.1)
print("end", repr(float(line.sum())), flush=True)
