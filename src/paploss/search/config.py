"""Everything a search depends on, as one checked configuration."""

from __future__ import annotations

import os
from typing import Any, Literal

from pydantic import Field, model_validator

from paploss.training.config import Section, TrainConfig, checked, override, read_yaml

LINEAR = "linear"  # f(x) = x, where the paper's search begins
SEGMENTS = 5  # of a function, as in the paper and in all presets
SamplerName = Literal["ppo2", "random", "tpe", "cmaes", "gp"]


class ProxyConfig(Section):
    """The short training whose AP on the evaluation split is a trial's reward.

    What is not given here is that of the final training.
    """

    epochs: int = Field(default=1, ge=1)
    fraction: float = Field(default=1.0, gt=0, le=1)  # of the training images
    evaluation_fraction: float = Field(default=1.0, gt=0, le=1)  # of the evaluation images
    image_size: int | tuple[int, int] | None = None
    learning_rate: float | None = Field(default=None, gt=0)
    warmup_steps: int | None = Field(default=None, ge=0)
    detector: dict[str, Any] = Field(default_factory=dict)  # say, one feature level while searching
    seed: int = 0
    prune: bool = False  # stop trials whose AP half-way is below the median of the others

    def train_config(self, train: TrainConfig) -> TrainConfig:
        """The configuration of a trial's training, but for the loss."""
        settings = train.model_dump(mode="json")
        settings["epochs"], settings["seed"] = self.epochs, self.seed
        # Whatever the loss of the final training was: pap is what is searched.
        settings["loss"] |= {"name": "pap", "parameters": None, "box_weight": None}
        settings["detector"] |= self.detector
        if self.image_size is not None:
            settings["data"]["size"] = self.image_size
        for key in ("learning_rate", "warmup_steps"):
            if getattr(self, key) is not None:
                settings["optimizer"][key] = getattr(self, key)
        return TrainConfig.model_validate(settings)


class SpaceConfig(Section):
    """What is searched, and from where.

    ``init`` is a preset, a loss file, or ``linear``, f(x) = x. If None, it is the detector's preset,
    which ends higher, unless ``shared`` or ``segments`` ask for functions that no preset has.
    """

    init: str | None = None
    segments: int = Field(default=SEGMENTS, ge=2)  # of linear
    shared: bool = False
    safe: bool = False
    fixed: list[str] = Field(default_factory=list)  # any of f1..f5, scale


class SamplerConfig(Section):
    """Who proposes losses, and how many."""

    name: SamplerName = "ppo2"
    rounds: int = Field(default=40, ge=1)
    samples: int = Field(default=8, ge=1)  # of a round
    sigma: float = Field(default=0.2, gt=0)  # half of that if not given, where a loss is the start
    seed: int = Field(default=0, ge=0)


class FinalistsConfig(Section):
    """The best trials are trained again, with several seeds or for longer; the highest mean wins."""

    count: int = Field(default=4, ge=1)
    seeds: int = Field(default=1, ge=1)
    # Of a training like the final one but for its length; the proxy again if None.
    epochs: int | None = Field(default=None, ge=1)

    def proxy(self, proxy: ProxyConfig) -> ProxyConfig:
        """The training of a finalist."""
        return proxy if self.epochs is None else ProxyConfig(epochs=self.epochs, seed=proxy.seed)


class ExecutorConfig(Section):
    """Where trials run; the results do not depend on it."""

    name: Literal["local", "ray"] = "local"
    workers: int = Field(default=1, ge=0)  # processes; 0: this one
    threads: int | None = Field(default=None, ge=1)  # of a worker; a fair share if None
    # Seconds of a trial before it counts as hung; ten times the longest so far if None.
    timeout: float | None = Field(default=None, gt=0)
    ray_address: str | None = None
    cpus: float = Field(default=1, gt=0)  # of a trial, for Ray
    gpus: float = Field(default=0, ge=0)


class FinalConfig(Section):
    """Trainings of full length once the loss is found, judged on the test split."""

    # Losses by name, presets or loss files to compare with. If None, the detector's usual loss, and
    # the loss that the search began with: it may be as good as what was found.
    against: list[str] | None = None
    seeds: int = Field(default=1, ge=1)


class SearchConfig(Section):
    """A search, and the final training with what it finds."""

    train: TrainConfig = Field(default_factory=TrainConfig)
    proxy: ProxyConfig = Field(default_factory=ProxyConfig)
    space: SpaceConfig = Field(default_factory=SpaceConfig)
    sampler: SamplerConfig = Field(default_factory=SamplerConfig)
    finalists: FinalistsConfig = Field(default_factory=FinalistsConfig)
    final: FinalConfig = Field(default_factory=FinalConfig)
    executor: ExecutorConfig = Field(default_factory=ExecutorConfig)
    storage: str | None = None  # an SQLAlchemy URL; SQLite in the run directory if None

    @model_validator(mode="after")
    def _choose_start(self) -> SearchConfig:
        """Where the search begins, how wide, and what it has to beat, to be read in the run directory."""
        space = self.space
        other_functions = space.shared or space.segments != SEGMENTS
        if space.init is None:
            space.init = LINEAR if other_functions else self.train.detector.default_preset
        if space.init != LINEAR and "sigma" not in self.sampler.model_fields_set:
            self.sampler.sigma /= 2  # a good loss is near the end of the way
        if self.final.against is None:
            starts = [] if space.init == LINEAR else [space.init]
            self.final.against = [self.train.detector.usual_loss, *starts]
        return self


def load_search_config(
    path: str | os.PathLike[str] | None, overrides: dict[str, Any] | None = None
) -> SearchConfig:
    """Read a search's yaml file, or a training's, which is then searched with the defaults."""
    content = read_yaml(path)
    if content and not content.keys() & SearchConfig.model_fields.keys():
        content = {"train": content}
    return checked(SearchConfig, override(content, overrides or {}), path)
