"""The policy: LeRobot's batches of raw observations in, actions in the robot's units out."""

from collections import deque
from pathlib import Path
from typing import Any

from lerobot.configs.policies import PreTrainedConfig
from lerobot.policies.pretrained import PreTrainedPolicy
import numpy as np
import torch
from torch import Tensor

from lerobot_policy_openpi_c.configuration_openpi_c import OpenpiCConfig
import openpi_c

IMAGES = "observation.images."
STATE = "observation.state"
SLOTS = ("base", "left_wrist", "right_wrist")


class OpenpiCPolicy(PreTrainedPolicy):
    """The engine does all: pictures, statistics, tokenizer, model. Nothing of it is a parameter of torch."""

    config_class = OpenpiCConfig
    name = "openpi_c"

    def __init__(self, config: OpenpiCConfig, dataset_stats: dict | None = None, **_: Any):
        super().__init__(config)
        if not config.checkpoint:
            raise ValueError("policy openpi_c has no checkpoint, expected --policy.checkpoint=FOLDER")
        self.engine = openpi_c.Policy(
            _found(config.checkpoint, config.pretrained_path),
            robot=config.robot,
            config=config.openpi_config,
            device=config.engine_device,
            dtype=config.dtype,
            steps=config.steps,
            threads=config.threads,
            seed=config.seed,
        )
        self._actions = config.n_action_steps or self.engine.horizon
        if self._actions > self.engine.horizon:
            raise ValueError(f"n_action_steps is {self._actions}, expected at most the chunk's {self.engine.horizon}")
        self.reset()

    @classmethod
    def from_pretrained(cls, pretrained_name_or_path, *, config=None, **kwargs: Any) -> "OpenpiCPolicy":
        """From a folder that `openpi-c lerobot` wrote. LeRobot's own would load model.safetensors into torch."""
        if config is None:
            config = PreTrainedConfig.from_pretrained(pretrained_name_or_path)
        config.pretrained_path = Path(pretrained_name_or_path)
        return cls(config).eval()

    def _save_pretrained(self, save_directory: Path, state_dict: dict | None = None) -> None:
        self.config._save_pretrained(save_directory)

    def get_optim_params(self) -> dict:
        return {}

    def reset(self) -> None:
        self._action_queue: deque[Tensor] = deque(maxlen=self._actions)

    def supports_rtc(self) -> bool:
        return False

    def forward(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict | None]:
        raise NotImplementedError("policy openpi_c runs checkpoints and does not train them")

    @torch.no_grad()
    def predict_action_chunk(self, batch: dict[str, Any], *, noise: Any = None, **kwargs: Any) -> Tensor:
        """[B, H, action_dim], float32: one call of the model for all environments of the batch."""
        if kwargs.get("prev_chunk_left_over") is not None:
            raise NotImplementedError("policy openpi_c has no real-time chunking, expected no prev_chunk_left_over")
        observations = [self._observation(batch, index) for index in range(_batch_size(batch))]
        self.engine.reserve(len(observations))
        answers = self.engine.infer_batch(observations, noise=noise)
        chunk = np.stack([answer["actions"] for answer in answers]).astype(np.float32)
        return torch.from_numpy(chunk).to(self.config.device)

    @torch.no_grad()
    def select_action(self, batch: dict[str, Any], **kwargs: Any) -> Tensor:
        """[B, action_dim]: the next action of the chunk; a new chunk where none is left."""
        if not self._action_queue:
            chunk = self.predict_action_chunk(batch, **kwargs)[:, : self._actions]
            self._action_queue.extend(chunk.transpose(0, 1))
        return self._action_queue.popleft()

    # ---- an environment's observation ------------------------------------------------------------------------

    def _observation(self, batch: dict[str, Any], index: int) -> dict[str, Any]:
        obs: dict[str, Any] = {}
        pictures = [key for key in batch if key.startswith(IMAGES)]
        for key in pictures:
            obs[self._camera(key, pictures)] = self._picture(batch[key][index])
        if STATE in batch:
            obs.update(self._state(batch[STATE][index].detach().cpu().numpy()))
        task = batch.get("task")
        if task is not None:
            obs["task" if self.engine.info["lerobot"] else "prompt"] = task if isinstance(task, str) else task[index]
        return obs

    def _camera(self, key: str, pictures: list[str]) -> str:
        """The engine's key of a camera: as `rename` says, by its name, or the base camera where it is the only one."""
        if key in self.config.rename or self.engine.info["lerobot"]:
            return self.config.rename.get(key, key)
        name = key.removeprefix(IMAGES)
        known = [camera for camera in self.engine.info["cameras"] if camera]
        for camera in known:
            if camera.rsplit("/", 1)[-1] == name:
                return camera
        if name in SLOTS or len(pictures) > 1:
            return name
        return "base"

    def _picture(self, picture: Tensor) -> np.ndarray:
        """LeRobot's floats go to its own resize; openpi's robots get the bytes that the floats were made of."""
        if self.engine.info["lerobot"] or picture.dtype == torch.uint8:
            return picture.detach().cpu().numpy()
        return (picture.detach().cpu() * 255).round().clamp(0, 255).to(torch.uint8).numpy()

    def _state(self, state: np.ndarray) -> dict[str, np.ndarray]:
        """The state under the keys that the robot has for its parts."""
        if STATE in self.config.rename:
            return {self.config.rename[STATE]: state}
        parts, at = {}, 0
        for key, length in self.engine.info["state"]:
            end = at + length if length else len(state)
            parts[key] = state[at:end]
            at = end
        if at < len(state):
            raise ValueError(f"{STATE} has {len(state)} numbers, robot {self.engine.info['robot']} has {at}")
        return parts


def _batch_size(batch: dict[str, Any]) -> int:
    for key, value in batch.items():
        if key.startswith("observation.") and isinstance(value, Tensor):
            return value.shape[0]
    raise ValueError(f"the batch has no observation, found the keys {sorted(batch)}")


def _found(checkpoint: str, folder: Path | None) -> Path:
    """The checkpoint, which the folder of a pretrained policy may hold."""
    inside = Path(folder or ".") / checkpoint
    return inside if folder and inside.exists() else Path(checkpoint)
