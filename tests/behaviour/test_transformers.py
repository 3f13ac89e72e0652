"""Models of Hugging Face on frozen bases: where they start, trained by its Trainer, saved and loaded."""

import warnings

import pytest
import torch

from spectral_param import (
    load_adapter,
    plain_state_dict,
    register_all,
    remove_svd_parametrization,
    save_adapter,
    singular_values,
    svd_parametrizations,
    together,
    without_adapter,
)
from tests.versions import experts_in_one_tensor

transformers = pytest.importorskip("transformers", reason="needs the extra [huggingface]")
pytest.importorskip("accelerate", reason="needs the extra [huggingface]")

WORDS = 50
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
LANGUAGE = {**SIZES, "vocab_size": WORDS, "max_position_embeddings": 16, "bos_token_id": 0, "eos_token_id": 1}
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
MODELS = {
    "gpt2": (
        "GPT2LMHeadModel",
        {"vocab_size": WORDS, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 2, "attn_pdrop": 0.0}
        | {"embd_pdrop": 0.0, "resid_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 1, "loss_type": "ForCausalLM"},
    ),
    "llama": ("LlamaForCausalLM", {**LANGUAGE, "num_key_value_heads": 1}),
    "bert": ("BertForSequenceClassification", {**LANGUAGE, **STILL}),
    "vit": ("ViTForImageClassification", {**SIZES, **STILL, "image_size": 16, "patch_size": 4}),
    "t5": (
        "T5ForConditionalGeneration",
        {"vocab_size": WORDS, "d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 2, "num_heads": 2}
        | {"dropout_rate": 0.0, "decoder_start_token_id": 0, "pad_token_id": 0},
    ),
    "mixtral": ("MixtralForCausalLM", {**LANGUAGE, "num_key_value_heads": 1, "num_local_experts": 4}),
}
FROZEN = {"base": "frozen", "reflectors": 4, "rank": 4}


def model_of(name):
    torch.manual_seed(0)
    kind = getattr(transformers, MODELS[name][0])
    return kind(kind.config_class(**MODELS[name][1])).eval()


def batch_for(name):
    ids = torch.randint(2, WORDS, (4, 12))
    if name == "vit":
        return {"pixel_values": torch.randn(4, 3, 16, 16), "labels": torch.tensor([0, 1, 0, 1])}
    return {"input_ids": ids, "labels": torch.tensor([0, 1, 0, 1]) if name == "bert" else ids}


@torch.no_grad()
def logits(model, batch):
    return model.eval()(**batch).logits


def trained(model, batch, folder, steps=3):
    rows = [{key: value[i] for key, value in batch.items()} for i in range(4)]
    arguments = transformers.TrainingArguments(
        str(folder), max_steps=steps, per_device_train_batch_size=4, learning_rate=0.02, weight_decay=0.1
    )
    arguments.disable_tqdm, arguments.save_strategy, arguments.report_to = True, "no", []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch and accelerate, on machines without an accelerator
        transformers.Trainer(model, arguments, train_dataset=rows).train()
    return model


@pytest.mark.parametrize("name", MODELS)
def test_it_starts_where_it_was_is_trained_and_comes_back_from_files(name, tmp_path):
    pytest.importorskip("safetensors")
    model, batch = model_of(name).requires_grad_(False), batch_for(name)
    before = logits(model, batch)
    report = register_all(model, **FROZEN)
    assert len(report.taken) >= 9
    torch.testing.assert_close(logits(model, batch), before, atol=1e-5, rtol=1e-5)

    after = logits(trained(model, batch, tmp_path), batch)
    assert (after - before).abs().max() > 1e-3
    for _, p in svd_parametrizations(model):
        said, weights = p.sigma.detach(), p.matrices.of(p(*p.factors).detach())
        said = said.abs().sort(-1, descending=True).values.reshape(p.chunks, -1)
        torch.testing.assert_close(said, torch.linalg.svdvals(weights), atol=1e-5, rtol=1e-5)
    with without_adapter(model):
        assert torch.equal(logits(model, batch), before)

    save_adapter(model, tmp_path / "adapter.safetensors")
    other = model_of(name)
    register_all(other, **FROZEN)
    load_adapter(other, tmp_path / "adapter.safetensors")
    torch.testing.assert_close(logits(other, batch), after, atol=1e-5, rtol=1e-5)

    model.save_pretrained(tmp_path / "merged", state_dict=plain_state_dict(model))
    merged = type(model_of(name)).from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(logits(merged, batch), after, atol=1e-5, rtol=1e-5)
    remove_svd_parametrization(model)
    torch.testing.assert_close(logits(model, batch), after, atol=1e-5, rtol=1e-5)


@experts_in_one_tensor
def test_each_expert_has_a_spectrum_of_its_own():
    model = model_of("mixtral")
    register_all(model, **FROZEN)
    experts = model.model.layers[0].mlp.experts
    assert singular_values(experts, "gate_up_proj").shape == (4, 32)


@experts_in_one_tensor
@pytest.mark.parametrize("implementation", ["eager", "grouped_mm"])
def test_the_weights_of_experts_are_built_once_a_forward(implementation):
    model, batch = model_of("mixtral"), batch_for("mixtral")
    register_all(model, **FROZEN)
    model.set_experts_implementation(implementation)
    built = []
    held = model.model.layers[0].mlp.experts.parametrizations.gate_up_proj
    held[0].register_forward_hook(lambda *_: built.append(1))
    with together(model):  # "eager" reads the weight for each expert
        model(**batch).loss.backward()
    assert len(built) == 1
