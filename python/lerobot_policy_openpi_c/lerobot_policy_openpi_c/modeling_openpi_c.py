"""The policy: LeRobot's batches of raw observations in, actions in the robot's units out."""

from collections import deque
from pathlib import Path
from typing import Any

from lerobot.configs.policies import PreTrainedConfig
from lerobot.policies.pretrained import PreTrainedPolicy
from lerobot.policies.rtc.configuration_rtc import RTCConfig
import numpy as np
import torch
from torch import Tensor

from lerobot_policy_openpi_c.configuration_openpi_c import OpenpiCConfig
from lerobot_policy_openpi_c.configuration_openpi_c import checkpoint_config
import openpi_c

IMAGES = "observation.images."
STATE = "observation.state"
SLOTS = ("base", "left_wrist", "right_wrist")


class LastChunk:
    """The chunk that was returned last, by robot: its actions [B, H, action_dim], and what the engine keeps of them."""

    def __init__(self, actions: np.ndarray, kept: np.ndarray):
        self.actions, self._kept = actions, kept

    def rest(self, robot: int, left_over: np.ndarray) -> np.ndarray | None:
        """The kept steps of the rest of which `left_over` has the first rows; None: there is no rest.

        lerobot-rollout cuts what is left over to its execution horizon, or fills it up: with the last action that is
        left (newer LeRobot) or with rows of 0. Those rows are no steps of the chunk, and nothing follows on from them.
        """
        actions = self.actions[robot]
        for executed in range(len(actions) + 1):
            rest = actions[executed : executed + len(left_over)]
            filled = left_over[len(rest) :]
            held = len(rest) and (filled == rest[-1]).all()
            if (left_over[: len(rest)] == rest).all() and (held or not filled.any()):
                return self._kept[robot][executed:] if len(rest) else None
        raise ValueError("prev_chunk_left_over is no rest of the chunk that this policy returned last")


def rtc_of(rules: RTCConfig, delay: int, horizon: int | None, steps: int) -> openpi_c.Rtc:
    """What LeRobot's settings are to the engine. A delay beyond the chunk counts as the whole chunk, as LeRobot's."""
    schedule = rules.prefix_attention_schedule
    return openpi_c.Rtc(
        delay=min(delay, steps - 1),
        mode=getattr(rules, "mode", None),
        schedule=str(getattr(schedule, "value", schedule)).lower(),
        horizon=min(rules.execution_horizon if horizon is None else horizon, steps),
        max_weight=rules.max_guidance_weight,
    )


class OpenpiCPolicy(PreTrainedPolicy):
    """The engine does all: pictures, statistics, tokenizer, model. Nothing of it is a parameter of torch."""

    config_class = OpenpiCConfig
    name = "openpi_c"

    def __init__(self, config: OpenpiCConfig, dataset_stats: dict | None = None, **_: Any):
        super().__init__(config)
        if not config.checkpoint:
            raise ValueError("policy openpi_c has no checkpoint, expected --policy.checkpoint=FOLDER")
        checkpoint = _found(config.checkpoint, config.pretrained_path)
        config.keep(checkpoint_config(checkpoint, config.adapter))
        self.engine = openpi_c.Policy(
            checkpoint,
            robot=config.robot,
            config=config.openpi_config,
            device=config.engine_device,
            dtype=config.dtype,
            steps=config.steps,
            threads=config.threads,
            seed=config.seed,
            adapter=config.adapter,
            without_lora=config.without_lora,
        )
        if config.action_feature_names is None and all(self.engine.info["action_names"]):
            config.action_feature_names = list(self.engine.info["action_names"])
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
        self._last: LastChunk | None = None

    def supports_rtc(self) -> bool:
        return True

    def init_rtc_processor(self) -> None:
        """LeRobot calls it where real-time chunking will be asked for: the engine's sessions are made for it."""
        self.engine.reserve(rtc=True)

    def forward(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict | None]:
        raise NotImplementedError("policy openpi_c runs checkpoints and does not train them")

    @torch.no_grad()
    def predict_action_chunk(
        self,
        batch: dict[str, Any],
        *,
        inference_delay: int | None = None,
        prev_chunk_left_over: Tensor | None = None,
        execution_horizon: int | None = None,
        noise: Any = None,
        **_: Any,
    ) -> Tensor:
        """[B, H, action_dim], float32: one call of the model for all environments of the batch.

        prev_chunk_left_over: what the robot has not executed of the chunk that this policy returned last, [steps,
        action_dim] or [B, steps, action_dim]. The new chunk follows on from it where config.rtc_config is enabled.
        """
        observations = [self._observation(batch, index) for index in range(_batch_size(batch))]
        rules = self.config.rtc_config
        enabled = rules is not None and rules.enabled
        self.engine.reserve(len(observations), rtc=enabled)
        previous, rtc = None, None
        if enabled and prev_chunk_left_over is not None:
            previous = self._previous(prev_chunk_left_over.detach().cpu().numpy(), len(observations))
            rtc = rtc_of(rules, inference_delay or 0, execution_horizon, self.engine.horizon)
        answers = self.engine.infer_batch(observations, noise=noise, previous=previous, rtc=rtc)
        chunk = np.stack([answer["actions"] for answer in answers]).astype(np.float32)
        if enabled:
            self._last = LastChunk(chunk.copy(), np.stack([answer["chunk"] for answer in answers]))
        return torch.from_numpy(chunk).to(self.config.device)

    def _previous(self, left_over: np.ndarray, count: int) -> list[np.ndarray | None]:
        """The rest of the last chunk in the engine's form: LeRobot gives it in the robot's units."""
        left_over = left_over[None] if left_over.ndim == 2 else left_over
        if not left_over.shape[1]:
            return [None] * count
        if self._last is None or left_over.shape[0] != count or self._last.actions.shape[0] != count:
            raise ValueError(
                f"prev_chunk_left_over is of {left_over.shape[0]} robots, expected a rest of the chunk that this "
                f"policy returned last, for {count}"
            )
        return [self._last.rest(index, rows) for index, rows in enumerate(left_over)]

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
