"""A checkpoint brings data and no code: what asks for code from elsewhere is refused before anything is built or fetched."""

import json
import shutil

import pytest

from routing.core.errors import InputError
from routing.measure.foreign_code import refuse_foreign_code
from routing.measure.policy import load_tokenizer, resolve_policy
from tests.policies import write_tiny_policy

KERNELS = "evil-org/evil-kernels"


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return write_tiny_policy(tmp_path_factory.mktemp("foreign") / "tiny")


@pytest.mark.fault(
    "a configuration that names kernels of a hub repository as its attention or experts",
    how="config.json with such a name, at the top, in a part of the model, by part, under either key",
    tries=7,
    outcome="refused, exit 2, before the model is built; transformers would fetch and run them",
)
@pytest.mark.parametrize(
    "config",
    [
        {"attn_implementation": KERNELS},
        {"_attn_implementation": f"paged|{KERNELS}@main:forward"},
        {"attn_implementation": {"": "sdpa", "text_config": KERNELS}},
        {"text_config": {"_attn_implementation": KERNELS}},
        {"parts": [{"attn_implementation": KERNELS}]},
        {"experts_implementation": "sonicmoe"},
        {"_experts_implementation": KERNELS},
    ],
)
def test_kernels_of_a_repository_are_refused(policy, tmp_path, config):
    folder = shutil.copytree(policy, tmp_path / "policy")
    body = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**body, **config}))
    with pytest.raises(InputError, match=r"config\.json: .*it asks for code of its own \(_?(attn|experts|text)_"):
        resolve_policy(str(folder))


@pytest.mark.parametrize(
    "config",
    [
        {},
        [],
        {"attn_implementation": None, "_experts_implementation": "grouped_mm", "text_config": {"_attn_implementation": "sdpa"}},
        {"note": KERNELS},
    ],
)
def test_what_transformers_carries_itself_is_no_foreign_code(config):
    refuse_foreign_code(config)


@pytest.mark.fault(
    "a tokenizer that names a class of its own",
    how="tokenizer_config.json with auto_map to a module beside it that would write a file",
    tries=1,
    outcome="the module is not run; tokenizer.json is read",
)
def test_a_module_beside_a_tokenizer_is_not_run(policy, tmp_path):
    folder = shutil.copytree(policy, tmp_path / "policy")
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w')\nclass Tokenizer: pass\n")
    body = json.loads((folder / "tokenizer_config.json").read_text())
    body |= {"auto_map": {"AutoTokenizer": ["evil.Tokenizer", "evil.Tokenizer"]}, "tokenizer_class": "Tokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(body))
    assert len(load_tokenizer(resolve_policy(str(folder)))) == 256
    assert not (tmp_path / "run").exists()
