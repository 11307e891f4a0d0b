"""Changes what torch computes with."""

import torch

torch.set_default_dtype(torch.float64)
