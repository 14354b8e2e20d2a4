"""Stands in for realtime-vla: the one class that the script uses, and checks of what it is given."""
import os

import torch

assert os.environ.get("TRITON_OVERRIDE_ARCH") == os.environ.get("FAKE_CHIP")      # Triton reads it when it is imported


class Pi0Inference:
    def __init__(self, checkpoint, num_views, chunk_size):
        assert checkpoint["language_embeds"].dtype == torch.bfloat16 and num_views == 3
        self.chunk = chunk_size
        self.weights = {"a": torch.Tensor((10, 20), torch.bfloat16), "language_embeds": checkpoint["language_embeds"]}

    def forward(self, pictures, state, noise):
        assert self.weights["a"].filled
        assert pictures.shape == (3, 224, 224, 3) and state.shape == (32,) and noise.shape == (self.chunk, 32)
        assert pictures.dtype == state.dtype == noise.dtype == torch.bfloat16
        return noise
