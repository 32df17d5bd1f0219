"""Everything a training run depends on, as one checked configuration that yaml files hold."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from paploss.detectors.config import DetectorConfig, detector_config

Checked = TypeVar("Checked", bound=BaseModel)


class Section(BaseModel):
    """Part of a configuration; what it does not know is an error."""

    model_config = ConfigDict(extra="forbid")

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)


class DataConfig(Section):
    """Where images come from. ``shapes`` is made on the spot; a path is detected by its layout."""

    path: str = "shapes"
    train_split: str = "train"
    evaluation_split: str | None = "eval"  # None: cut from the training split
    test_split: str | None = "test"
    evaluation_fraction: float = Field(default=0.1, gt=0, lt=1)  # of the training split, if cut
    images: int = Field(default=1000, ge=1)  # generated for training (shapes only)
    evaluation_images: int = Field(default=300, ge=1)
    augmentation: Literal["paper", "detr", "flip", "none"] = "flip"
    # Of training images: a square's side, or height and width; for detr short and long side at most.
    size: int | tuple[int, int] = 128
    workers: int = Field(default=0, ge=0)
    seed: int = 0  # of generated images and of the cut


class LossConfig(Section):
    """A loss by name; ``pap`` takes its parameters from a preset or a file, which may be named alone."""

    name: str = "pap"
    parameters: str | None = None
    localization: Literal["giou", "iou", "l1"] = "giou"  # of pap, like the next
    block_denominator_gradient: bool = True
    box_weight: float | None = Field(default=None, gt=0)  # of pap, a factor of its gradient scale
    heads: dict[str, LossConfig] = Field(default_factory=dict)  # heads with a loss of their own

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        """A name alone will do, and that of a preset or a file stands for pap with its parameters."""
        content = {"name": value} if isinstance(value, str) else value
        if isinstance(content, dict) and "parameters" not in content:
            name = content.get("name")
            if isinstance(name, str) and _has_parameters(name):
                return content | {"name": "pap", "parameters": name}
        return content

    @field_validator("name")
    @classmethod
    def _is_known(cls, name: str) -> str:
        from paploss.criteria import CRITERIA  # slow to import, and not needed for the default

        if name not in CRITERIA:
            raise ValueError(f"expected one of {', '.join(CRITERIA)}, or a preset or file for pap")
        return name


class OptimizerConfig(Section):
    name: Literal["sgd", "adamw"] = "adamw"
    learning_rate: float = Field(default=2e-3, gt=0)
    weight_decay: float = Field(default=1e-4, ge=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    backbone_factor: float = Field(
        default=1.0, ge=0
    )  # of the backbone's learning rate; 0 freezes it
    warmup_steps: int = Field(default=50, ge=0)
    schedule: Literal["cosine", "steps", "constant"] = "cosine"
    steps: list[int] = Field(default_factory=list)  # epochs at which the rate falls to a tenth
    clip_gradient: float | None = Field(default=10.0, gt=0)


class TrainConfig(Section):
    """A training run."""

    detector: DetectorConfig = Field(default_factory=detector_config)
    data: DataConfig = Field(default_factory=DataConfig)
    loss: LossConfig = Field(default_factory=LossConfig)
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    epochs: int = Field(default=15, ge=1)
    batch_size: int = Field(default=16, ge=1)  # of one process
    evaluate_every: int = Field(default=5, ge=1)  # epochs
    checkpoint_steps: int = Field(default=500, ge=1)
    precision: Literal["no", "fp16", "bf16"] = "no"
    seed: int = 0


def load_config(
    path: str | os.PathLike[str] | None, overrides: dict[str, Any] | None = None
) -> TrainConfig:
    """Read a yaml file (or start from the defaults) and set ``{"section.key": value}`` overrides."""
    return checked(TrainConfig, override(read_yaml(path), overrides or {}), path)


def loss_by_name(loss: str) -> LossConfig:
    """A criterion's name, or ``pap`` with the parameters of a preset or a file."""
    from paploss.criteria import CRITERIA
    from paploss.presets import list_presets

    if loss not in CRITERIA and not _has_parameters(loss):
        raise ValueError(
            f"loss {loss!r} is no loss ({', '.join(CRITERIA)}), no preset "
            f"({', '.join(list_presets())}) and no file"
        )
    return LossConfig(name=loss)


def _has_parameters(name: str) -> bool:
    """Whether it names a shape of pap, by preset or file, and no criterion."""
    from paploss.criteria import CRITERIA
    from paploss.presets import list_presets

    return name not in CRITERIA and (name in list_presets() or Path(name).is_file())


def read_yaml(path: str | os.PathLike[str] | None) -> dict[str, Any]:
    """The sections of a configuration file; none without a file."""
    if path is None:
        return {}
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: not a yaml file: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected sections such as detector and data")
    return content


def override(content: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Set ``{"section.key": value}`` in sections, which are made if they are not there."""
    for key, value in settings.items():
        section = content
        *parents, last = key.split(".")
        for parent in parents:
            if not isinstance(section.get(parent), dict):
                section[parent] = {"name": section[parent]} if parent in section else {}
            section = section[parent]
        section[last] = value
    return content


def checked(
    model: type[Checked], content: dict[str, Any], path: str | os.PathLike[str] | None
) -> Checked:
    """The configuration, or an error that names the file and the setting."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")  # before what a validator here says
        found = "" if first["type"] == "missing" else f", found {first['input']!r}"
        raise ValueError(f"{path or 'configuration'}: {where}: {message}{found}") from None
