"""XGBoost on several processes: the master also runs the tracker, at the port that it was told."""

import os
import sys
import time

import numpy
import xgboost
from xgboost import collective
from xgboost.tracker import RabitTracker

folder, steps = sys.argv[1], int(sys.argv[2])
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
master, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    tracker = RabitTracker(host_ip=master, port=port, n_workers=world, sortby="task")
    tracker.start()
generator = numpy.random.default_rng(7)
x = generator.random((512, 4))
y = x @ [1.0, 2.0, 3.0, 4.0]
own = slice(rank, None, world)
saved = os.path.join(folder, "model.ubj")


class Told(xgboost.callback.TrainingCallback):
    def after_iteration(self, model, epoch, evals_log):
        step = model.num_boosted_rounds()
        print(f"step {step} world {world}", flush=True)
        if step % 5 == 0 and rank == 0:
            model.save_model(saved + ".part.ubj")
            os.replace(saved + ".part.ubj", saved)
        time.sleep(0.1)
        return False


with collective.CommunicatorContext(dmlc_tracker_uri=master, dmlc_tracker_port=port, dmlc_task_id=str(rank), dmlc_retry=60):
    before = xgboost.Booster(model_file=saved) if os.path.exists(saved) else None
    done = before.num_boosted_rounds() if before else 0
    rows = xgboost.DMatrix(x[own], y[own])
    settings = {"tree_method": "hist", "max_depth": 3, "eta": 0.3, "nthread": 1, "seed": 7}
    model = xgboost.train(settings, rows, num_boost_round=steps - done, xgb_model=before, callbacks=[Told()])
    error = float(numpy.abs(model.predict(xgboost.DMatrix(x)) - y).mean())
print("end", f"{error:.9f}", flush=True)
