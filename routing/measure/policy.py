"""A policy as it is measured: the base model without its LM head, its tokenizer, and what identifies both.

Safetensors only and no remote code: a checkpoint that needs either is refused.
"""

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from routing.core.errors import InputError
from routing.core.shapes import ModelShape
from routing.measure.adapter import apply_adapter, require_adapter
from routing.measure.attention import use_flash_attention
from routing.measure.capture import ExpertsModule, find_experts
from routing.measure.foreign_code import refuse_foreign_code
from routing.measure.geometry import Geometry, read_geometry, text_decoder, told_as
from routing.measure.hub import fetch, pin
from routing.measure.prefixes import cache_keyword
from routing.measure.spread import layers_by_device, placement_arguments
from routing.store.files import sha256_of
from routing.store.manifest import PolicyRecord

VOCABULARIES = ("tokenizer.json", "vocab.json", "vocab.txt", "tokenizer.model", "tekken.json")


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyFiles:
    """A checkpoint folder and its identity, before any weight is loaded."""

    name: str
    folder: Path
    tokenizer_folder: Path
    record: PolicyRecord
    config: Any
    geometry: Geometry
    adapter: Path | None = None
    base: "PolicyFiles | None" = None  # what the adapter is over

    @property
    def shape(self) -> ModelShape:
        """The routed geometry, what a table of allowances belongs to."""
        return self.geometry.shape


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedPolicy:
    """The base model on its device, in eval mode, with its experts modules by layer; `cache_keyword` is how it takes a cache."""

    model: nn.Module
    experts: tuple[ExpertsModule, ...]
    top_k: int
    device: torch.device
    attention_implementation: str
    experts_implementation: str
    cache_keyword: str | None
    layers_by_device: dict[str, int] | None = None  # of a policy that was spread


def resolve_policy(policy: str, *, tokenizer: str | None = None) -> PolicyFiles:
    """Reads the identity and shape of a folder, or of a hub id (`org/name` or `org/name@revision`), without its weights.

    InputError where it isn't a checkpoint of ours to take: no config, pickles only, remote code, no experts module.
    """
    folder, commit = _local_folder(policy)
    tokenizer_folder = Path(tokenizer) if tokenizer else folder
    if not tokenizer_folder.is_dir():
        raise InputError(f"--tokenizer: {tokenizer_folder} is no folder")
    _require_safetensors(folder)
    config = _read_config(folder / "config.json")
    geometry = read_geometry(config, where=str(folder))
    weights_sha256 = hash_files(sorted(folder.glob("*.safetensors")))
    record = PolicyRecord(
        name=folder.name if commit is None else policy.partition("@")[0],
        revision=commit or f"sha256:{weights_sha256}",
        architecture=_architecture(config),
        weights_sha256=weights_sha256,
        config_sha256=sha256_of(folder / "config.json"),
        tokenizer_sha256=hash_files(_tokenizer_files(tokenizer_folder)),
        template_sha256=None,
    )
    return PolicyFiles(
        name=record.name,
        folder=folder,
        tokenizer_folder=tokenizer_folder,
        record=record,
        config=config,
        geometry=geometry,
    )


def adapted(base: PolicyFiles, folder: Path) -> PolicyFiles:
    """The policy that the adapter in `folder` makes of `base`; the errors of `require_adapter`.

    Its `weights_sha256` is over base and adapter, so that the two are two policies wherever runs are compared.
    """
    adapter_sha256 = hash_files(require_adapter(folder))
    both = hashlib.sha256(f"{base.record.weights_sha256}\n{adapter_sha256}\n".encode()).hexdigest()
    name = f"{base.name}+{folder.resolve().name}"
    is_commit = not base.record.revision.startswith("sha256:")
    record = replace(
        base.record,
        name=name,
        revision=base.record.revision if is_commit else f"sha256:{both}",
        weights_sha256=both,
        adapter_sha256=adapter_sha256,
    )
    return replace(base, name=name, record=record, adapter=folder, base=base)


def policy_shape(policy: str) -> ModelShape:
    """The routed geometry of a folder or hub id from its configuration alone; the errors of `resolve_policy`."""
    folder, _ = _local_folder(policy)
    _require_safetensors(folder)
    return read_geometry(_read_config(folder / "config.json"), where=str(folder)).shape


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfiguredModel:
    """What a configuration alone says of a model whose weights are elsewhere."""

    shape: ModelShape
    architecture: str
    config_sha256: str


def read_model(path: Path) -> ConfiguredModel:
    """The model of a `config.json`, or of the folder that holds one."""
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise InputError(f"{path}: no config.json; name the model's configuration, or the folder that holds it")
    config = _read_config(file)
    geometry = read_geometry(config, where=str(file))
    return ConfiguredModel(shape=geometry.shape, architecture=_architecture(config), config_sha256=sha256_of(file))


def load_tokenizer(files: PolicyFiles) -> Any:
    """The fast tokenizer of the policy, or of --tokenizer."""
    from transformers import AutoTokenizer

    folder = files.tokenizer_folder
    if not any(path.name in VOCABULARIES for path in _tokenizer_files(folder)):  # transformers would invent an empty one
        raise InputError(f"{folder}: no vocabulary ({', '.join(VOCABULARIES)}); name a folder that has one with --tokenizer DIR")
    with told_as(f"{folder}: no tokenizer to load", then="; name one with --tokenizer DIR"):
        tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
        if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
            raise ValueError(f"its vocabulary holds {len(tokenizer)} tokens, all of them special")
        return tokenizer


def load_policy(
    files: PolicyFiles, *, device: torch.device, dtype: torch.dtype, device_map: str | None = None
) -> LoadedPolicy:
    """Loads the base model to `device`, or spread; InputError where a weight is missing, since transformers would invent it."""
    base = _base_model(files, dtype, device_map)
    decoder = text_decoder(base).eval()
    if device_map is None:
        decoder = decoder.to(device)
    if _experts_implementation(decoder.config) == "batched_mm":
        raise InputError(
            f"{files.folder}: experts implementation batched_mm copies weights for every row; use grouped_mm or eager"
        )
    use_flash_attention(decoder, device=device, dtype=dtype)
    policy = as_policy(decoder, top_k=files.shape.top_k, device=device)
    return policy if device_map is None else replace(policy, layers_by_device=layers_by_device(base, str(device)))


def as_policy(decoder: nn.Module, *, top_k: int, device: torch.device) -> LoadedPolicy:
    """A decoder that is in eval mode on `device` already; its configuration says which implementations it chose."""
    config: Any = decoder.config
    return LoadedPolicy(
        model=decoder,
        experts=find_experts(decoder),
        top_k=top_k,
        device=device,
        attention_implementation=str(getattr(config, "_attn_implementation", "default")),
        experts_implementation=_experts_implementation(config),
        cache_keyword=cache_keyword(decoder),
    )


def _experts_implementation(config: Any) -> str:
    return str(getattr(config, "_experts_implementation", None) or "default")


def _base_model(files: PolicyFiles, dtype: torch.dtype, device_map: str | None) -> nn.Module:
    """The model without its head; under an adapter cut out of the class that the adapter was trained on."""
    import transformers

    named = getattr(transformers, files.record.architecture, transformers.AutoModelForCausalLM)
    kind: Any = transformers.AutoModel if files.adapter is None else named
    with told_as(f"{files.folder}: weights not loaded"):
        model, loaded = kind.from_pretrained(
            str(files.folder),
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            **placement_arguments(device_map),
        )
    base: nn.Module = model.base_model
    ours = f"{model.base_model_prefix}." if base is not model else ""  # a head that is missing is not run
    absent = sorted(one for one in loaded["missing_keys"] if one.startswith(ours))
    absent += sorted(str(one) for one in loaded["mismatched_keys"])
    if absent:
        raise InputError(f"{files.folder}: {len(absent)} weights missing or of another shape, first {absent[0]}")
    if files.adapter is not None:
        apply_adapter(model, files.adapter)
    return base


def _local_folder(policy: str) -> tuple[Path, str | None]:
    found = pin(policy)
    return (Path(policy), None) if found is None else (fetch(found), found.commit)


def _architecture(config: Any) -> str:
    """The first class that the configuration names, its model type where it names none."""
    named = config.architectures
    first = named[0] if isinstance(named, list | tuple) and named else None
    return first if isinstance(first, str) and first.isprintable() and first else str(config.model_type)


def _require_safetensors(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder}: no config.json; a policy is a checkpoint folder or a hub id")
    odd = next((one.name for one in sorted(folder.glob("*.safetensors")) if not one.is_file()), None)
    if odd is not None:
        raise InputError(f"{folder / odd}: not a file, weights are one")  # a pipe would be waited for without end
    if not any(folder.glob("*.safetensors")):
        pickles = sorted(one.name for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for one in folder.glob(pattern))
        why = f"{pickles[0]} is a pickle, which could run code" if pickles else "no weights"
        raise InputError(f"{folder}: {why}; safetensors only")


def _read_config(file: Path) -> Any:
    from transformers import AutoConfig

    with told_as(f"{file}: not a configuration we can load"):
        refuse_foreign_code(json.loads(file.read_text()))
        return AutoConfig.from_pretrained(str(file), trust_remote_code=False)


def _tokenizer_files(folder: Path) -> list[Path]:
    names = (
        "tokenizer.json",
        "tokenizer_config.json",
        "added_tokens.json",
        "vocab.json",
        "vocab.txt",
        "merges.txt",
        "tokenizer.model",
        "tekken.json",
        "special_tokens_map.json",
        "chat_template.jinja",
    )
    return [folder / name for name in names if (folder / name).is_file()]


def hash_files(paths: list[Path]) -> str:
    """sha256 over names and contents."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.name}\0{sha256_of(path)}\n".encode())
    return digest.hexdigest()
