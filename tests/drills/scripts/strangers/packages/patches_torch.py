"""Changes the settings with which torch computes."""

import torch

torch.set_default_dtype(torch.float64)
