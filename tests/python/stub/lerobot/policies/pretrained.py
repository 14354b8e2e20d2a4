"""LeRobot's PreTrainedPolicy: what a subclass must define, and eval()."""

import abc


class PreTrainedPolicy(abc.ABC):
    def __init__(self, config, *inputs, **kwargs):
        assert isinstance(config, self.config_class)
        self.config = config

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        assert cls.config_class and cls.name

    def eval(self):
        return self

    @abc.abstractmethod
    def get_optim_params(self): ...

    @abc.abstractmethod
    def reset(self): ...

    @abc.abstractmethod
    def forward(self, batch): ...

    @abc.abstractmethod
    def predict_action_chunk(self, batch, **kwargs): ...

    @abc.abstractmethod
    def select_action(self, batch, **kwargs): ...
