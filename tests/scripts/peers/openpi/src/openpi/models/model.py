class Observation:
    @classmethod
    def from_dict(cls, data):
        observation = cls()
        observation.data = data
        return observation
