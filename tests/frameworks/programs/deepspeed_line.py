"""DeepSpeed on CPUs under torchrun's variables, with ZeRO's first stage: each process has a part of the data and of the optimizer's state."""

import os
import sys
import time

import deepspeed
import torch

folder, steps = sys.argv[1], int(sys.argv[2])
deepspeed.init_distributed(dist_backend="gloo")
model = torch.nn.Linear(1, 1)
torch.nn.init.zeros_(model.weight)
torch.nn.init.zeros_(model.bias)
settings = {
    "train_micro_batch_size_per_gpu": 96,
    "gradient_clipping": 0.0,
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,
}
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5)
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
rank, world = deepspeed.comm.get_rank(), deepspeed.comm.get_world_size()
x = torch.arange(192).reshape(-1, 1)[rank::world] / 192

step = 0
if os.path.exists(os.path.join(folder, "latest")):
    _, told = engine.load_checkpoint(folder)
    step = told["step"]
while step < steps:
    engine.backward((engine(x) - (3 * x + 1)).square().mean())
    engine.step()
    step += 1
    print(f"step {step} world {world}", flush=True)
    if step % 5 == 0:
        engine.save_checkpoint(folder, tag=str(step), client_state={"step": step})
    time.sleep(0.1)
if rank == 0:
    print("end", repr(sum(float(value.detach()) for value in model.parameters())), flush=True)
