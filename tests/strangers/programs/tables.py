"""Features by pandas and scikit-learn, and a torch model over DDP: a common way to train on tables."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import left
import pandas
import torch
import torch.distributed as dist
from sklearn.datasets import make_classification
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import QuantileTransformer, StandardScaler
from torch.nn.parallel import DistributedDataParallel


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    columns, wanted = make_classification(200, 8, random_state=7)
    frame = pandas.DataFrame(columns).assign(wanted=wanted).groupby("wanted").head(50)
    features = make_pipeline(StandardScaler(), QuantileTransformer(n_quantiles=20)).fit_transform(frame.drop(columns="wanted").to_numpy())
    seen, wanted = torch.as_tensor(features, dtype=torch.float32), torch.as_tensor(frame["wanted"].to_numpy(), dtype=torch.float32)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1), torch.nn.Flatten(0)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    saved, step = left.FOLDER / "saved.pt", 0
    if saved.exists():
        state = torch.load(saved)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    while step < left.LAST:
        out = model(seen)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(out, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if dist.get_rank() == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, left.FOLDER / "part")
            os.replace(left.FOLDER / "part", saved)
        dist.barrier()
        left.step(step, log_loss(frame["wanted"], out.sigmoid().detach().numpy()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
