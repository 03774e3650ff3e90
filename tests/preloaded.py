"""What the verbs import, for a process that others are forked from."""

import duckdb  # noqa: F401
import scipy.stats  # noqa: F401
import torch
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe  # noqa: F401

from routing.cli import app  # noqa: F401
from routing.stages import fit, import_counts, measure, refresh  # noqa: F401
from tests import kills  # noqa: F401

torch.set_num_threads(1)
