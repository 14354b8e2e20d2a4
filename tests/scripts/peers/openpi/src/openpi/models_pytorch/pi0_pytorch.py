import os

import torch

PARAMETERS = 3501372176


class PI0Pytorch:
    def __init__(self, config):
        if os.environ.get("FAKE_UNPATCHED"):
            raise ValueError("transformers_replace is not installed correctly.")
        assert config.dtype == "bfloat16"
        self.config = config
        plain = self.sample_actions
        self.compiled_calls = 0

        def compiled(*args, **kwargs):
            self.compiled_calls += 1
            return plain(*args, **kwargs)

        self.sample_actions = compiled

    def to(self, device):
        return self

    def eval(self):
        return self

    def parameters(self):
        return [torch.Tensor((PARAMETERS,), torch.bfloat16)]

    def sample_actions(self, device, observation, noise=None, num_steps=10):
        data, batch = observation.data, noise.shape[0]
        assert noise.shape == (batch, self.config.action_horizon, 32)
        assert list(data["image"]) == ["base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb"]
        for picture in data["image"].values():
            assert picture.shape == (batch, 224, 224, 3) and picture.dtype == torch.uint8 and picture.device == device
        for mask in data["image_mask"].values():
            assert mask.shape == (batch,) and mask.dtype == torch.bool
        assert data["state"].shape == (batch, 32)
        assert data["tokenized_prompt"].shape == data["tokenized_prompt_mask"].shape
        assert data["tokenized_prompt"].shape[0] == batch
        print(f"sampled {batch} {data['tokenized_prompt'].shape[1]} {num_steps} {self.compiled_calls > 0}")
        return torch.Tensor(noise.shape, torch.float32, device)
