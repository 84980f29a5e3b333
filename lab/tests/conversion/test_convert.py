"""convert on tiny random models: what the stages compare, that they learn, go on where they stopped, and refuse."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    AlbertConfig,
    AlbertModel,
    AutoModel,
    AutoModelForCausalLM,
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MinistralConfig,
    MinistralForCausalLM,
    PreTrainedModel,
)

from fastmax.integrations.transformers import FastmaxCache, configure, parameters_of
from fastmax_lab.conversion import Stage, convert, layers, losses, narrowing
from fastmax_lab.conversion import batches as batches_
from fastmax_lab.conversion.parameters import learning

TINY = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
SHORT = {
    "transfer": Stage(8, 1e-2),
    "distill": Stage(6, 3e-4, scale_lr=1e-3, gate_lr=1e-3, train="all"),
    "progress": False,
}


def made(kind: type[PreTrainedModel], config: Any) -> PreTrainedModel:
    """With sharper attention than random weights have: else softmax is a mean, and all attentions are alike."""
    torch.manual_seed(0)
    model = kind._from_config(config, attn_implementation="sdpa").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(6)
    return model


def llama() -> PreTrainedModel:
    return made(LlamaForCausalLM, LlamaConfig(**TINY, num_key_value_heads=2))


def bert(kind: type[PreTrainedModel] = BertModel) -> PreTrainedModel:
    return made(kind, BertConfig(**TINY))


def sentences(count: int, padded: str = "none", length: int = 16) -> list[dict[str, Tensor]]:
    chance = torch.Generator().manual_seed(1)
    found = []
    for _ in range(count):
        batch = {"input_ids": torch.randint(3, 50, (3, length), generator=chance)}
        if padded != "none":
            sizes = torch.tensor([length, length - 5, length // 2])
            mask = torch.arange(length) < sizes[:, None]
            batch["attention_mask"] = (mask if padded == "right" else mask.flip(1)).long()
        found.append(batch)
    return found


@pytest.mark.parametrize(("make", "padded"), [(llama, "left"), (llama, "none"), (bert, "right")])
def test_a_layer_is_compared_on_the_teachers_own_inputs(make: Any, padded: str) -> None:
    """The errors, and their gradients, are those of each module called by itself with what it gets in the teacher."""
    teacher, student, (batch,) = make(), make(), sentences(1, padded)
    configure(student, learn_scale=True)
    learning(student, Stage(1, 1e-3))
    mask = batch.get("attention_mask")
    pairs = layers.pairs(student, teacher)
    scales = {pair.name: student.get_parameter(f"{pair.name}.fastmax.head_scale") for pair in pairs}
    calls: dict[nn.Module, Any] = {}
    for pair in pairs:
        pair.teacher.register_forward_hook(lambda m, a, k, o: calls.update({m: (a, k, o[0])}), with_kwargs=True)
    teacher(**batch, use_cache=False)
    expected, gradients = {}, {}
    for pair in pairs:
        args, kwargs, theirs = calls[pair.teacher]
        keys = None if mask is None else mask.bool() if padded == "left" else mask.bool()[:, None, None]
        kwargs = {**kwargs, "attention_mask": keys}
        mine = pair.student(args[0], keys)[0] if args else pair.student(**kwargs)[0]
        w = torch.ones(3, 16) if mask is None else mask.float()
        centre = (theirs * w[..., None]).sum((0, 1)) / w.sum()
        error = ((mine - theirs).square().sum(-1) * w).sum() / ((theirs - centre).square().sum(-1) * w).sum()
        expected[pair.name] = error.detach()
        gradients[pair.name] = torch.autograd.grad(error, scales[pair.name])[0]
    found = layers.layer_errors(student, pairs, batch, learn=True)
    assert found.keys() == expected.keys()
    for pair in pairs:
        torch.testing.assert_close(found[pair.name], expected[pair.name], rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(scales[pair.name].grad, gradients[pair.name], rtol=1e-3, atol=1e-4)


def test_a_pass_of_the_student_with_the_teachers_outputs_is_the_teachers_pass() -> None:
    teacher, student, (batch,) = llama(), llama(), sentences(1, "left")
    configure(student)
    pairs = layers.pairs(student, teacher)
    kept: list[Tensor] = []
    hook = student.model.register_forward_hook(lambda _m, _a, output: kept.append(output.last_hidden_state))
    layers.layer_errors(student, pairs, batch, learn=False)
    hook.remove()
    counts = batch["attention_mask"].bool()
    torch.testing.assert_close(kept[0][counts], teacher.model(**batch).last_hidden_state[counts], rtol=1e-4, atol=1e-4)
    assert not student.model.layers[0].self_attn._forward_hooks
    assert not torch.equal(student(**batch).logits, teacher(**batch).logits)


@pytest.mark.parametrize(
    ("make", "padded", "options"),
    [
        (llama, "none", {"decay": "gated"}),
        (llama, "left", {"decay": "learned", "normalize": False}),
        (bert, "right", {"order": 4, "loss": "embeddings"}),
    ],
)
def test_both_stages_bring_the_student_nearer(make: Any, padded: str, options: dict[str, Any]) -> None:
    teacher = make()
    before = {name: x.clone() for name, x in teacher.state_dict().items()}
    transfer = Stage(30, 1e-2)
    done = convert(teacher, sentences(6, padded), **options, **SHORT | {"transfer": transfer})
    assert all(layer.after < layer.before for layer in done.layers), str(done)
    assert done.losses["distill"] < done.losses["transfer"] < done.losses["before"]
    assert all(torch.equal(x, before[name]) for name, x in teacher.state_dict().items())
    assert teacher.config._attn_implementation == "sdpa"
    assert not done.model.training
    assert all(p.requires_grad for p in done.model.parameters())
    assert [(stage, step) for stage, step, _ in done.curve][29:32] == [("transfer", 30), ("distill", 1), ("distill", 2)]
    counted = sum(
        int(b["attention_mask"].sum()) if padded != "none" else 48 for b in (sentences(6, padded)[2:] * 9)[:30]
    )
    assert done.tokens["transfer"] == counted
    table = str(done)
    assert done.layers[1].name in table
    assert "distance of the whole" in table
    assert done.to_dict()["recipe"]["transfer"]["steps"] == 30


class StopHereError(Exception):
    pass


def stopping_at(stage: str, step: int) -> Callable[[str, int, PreTrainedModel], None]:
    def stop(now: str, done: int, _model: PreTrainedModel) -> None:
        if (now, done) == (stage, step):
            raise StopHereError

    return stop


@pytest.mark.parametrize("stage", ["transfer", "distill"])
def test_a_stage_never_ends_worse_than_it_began(stage: str, tmp_path: Path) -> None:
    """With rates that destroy what was learned, a stage ends with the weights of its best moment on held-out batches."""
    wild = Stage(8, 3.0, scale_lr=3.0, train="queries_keys")
    options = {"progress": False, "transfer": Stage(4, 1e-2), "distill": Stage(4, 1e-3, train="all")} | {stage: wild}
    wrong = convert(bert(), sentences(5), keep_best=False, **options)
    path = tmp_path / "state.safetensors"
    with pytest.raises(StopHereError):
        convert(bert(), sentences(5), **options, checkpoint_path=path, save_every=1, watch=stopping_at(stage, 6))
    right = convert(bert(), sentences(5), checkpoint_path=path, **options)
    assert wrong.kept[stage] == 8
    assert right.kept[stage] in (0, 2, 4, 6)
    assert right.kept[stage] == 0 or stage == "transfer"
    if stage == "transfer":
        before, after = (sum(getattr(x, when) for x in right.layers) for when in ("before", "after"))
        assert after <= before < sum(x.after for x in wrong.layers)
    else:
        assert right.losses["distill"] <= right.losses["transfer"] < wrong.losses["distill"]
        assert f"distill: {right.tokens['distill']} tokens" in str(right)
        assert f"the weights of step {right.kept['distill']} of 8" in str(right)
    apart = []
    for batch in sentences(5)[:2]:  # what is reported is what the student does
        with torch.no_grad():
            mine, theirs = (model(**batch, output_hidden_states=True) for model in (right.model, bert()))
            apart.append(losses.hidden(mine, theirs, batch).item())
    assert sum(apart) / 2 == pytest.approx(right.losses["distill"], rel=1e-5)


def test_the_student_is_saved_and_generates(tmp_path: Path) -> None:
    done = convert(llama(), sentences(4), decay="gated", windows={"model.layers.1.self_attn": 4}, **SHORT)
    done.model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    x = sentences(1)[0]["input_ids"]
    assert torch.equal(again(x).logits, done.model(x).logits)
    kept = [parameters_of(layer.self_attn) for layer in again.model.layers]
    assert [child and (child.options.decay, child.options.window) for child in kept] == [("gated", None), (None, 4)]
    told = [
        again.generate(x, attention_mask=torch.ones_like(x), max_new_tokens=6, do_sample=False, pad_token_id=0, **more)
        for more in ({"past_key_values": FastmaxCache(again.config)}, {"use_cache": False})
    ]
    assert torch.equal(*told)


@pytest.mark.parametrize(("stage", "step"), [("transfer", 5), ("transfer", 8), ("distill", 3)])
def test_an_interrupted_conversion_goes_on(tmp_path: Path, stage: str, step: int) -> None:
    """Resume from the last file, and get the same student and the same report."""
    stop = stopping_at(stage, step)
    path = tmp_path / "deep" / "state.safetensors"
    options = {"decay": "gated", **SHORT}
    with pytest.raises(StopHereError):
        convert(llama(), sentences(5), **options, checkpoint_path=path, save_every=2, watch=stop)
    steps: list[tuple[str, int]] = []
    resumed = convert(
        llama(), sentences(5), **options, checkpoint_path=path, watch=lambda s, n, _m: steps.append((s, n))
    )
    whole = convert(llama(), iter(sentences(5) + sentences(5)[2:] * 4), **options)
    assert steps[0] == {5: ("transfer", 5), 8: ("transfer", 7), 3: ("distill", 3)}[step]
    assert len(steps) < 14
    for name, x in whole.model.state_dict().items():
        assert torch.equal(x, resumed.model.state_dict()[name]), name
    assert resumed.curve == whole.curve
    assert resumed.layers == whole.layers
    assert resumed.tokens == whole.tokens
    finished = convert(llama(), sentences(5), **options, checkpoint_path=path, watch=stop)
    assert finished.losses == resumed.losses


def test_files_that_cannot_be_gone_on_from(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    convert(llama(), sentences(3), checkpoint_path=path, **SHORT)
    with pytest.raises(ValueError, match=r"other settings, got order: 4, not 2"):
        convert(llama(), sentences(3), order=4, checkpoint_path=path, **SHORT)
    other = made(LlamaForCausalLM, LlamaConfig(**TINY | {"hidden_size": 16}, num_key_value_heads=2))
    with pytest.raises(ValueError, match="is of another model: it has"):
        convert(other, sentences(3), checkpoint_path=path, **SHORT)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        convert(llama(), sentences(3), checkpoint_path=path, **SHORT)
    import safetensors.torch

    safetensors.torch.save_file({"x": torch.zeros(1)}, path)
    with pytest.raises(ValueError, match="no checkpoint of a conversion"):
        convert(llama(), sentences(3), checkpoint_path=path, **SHORT)


def trained(model: PreTrainedModel, stage: Stage) -> list[str]:
    names, _ = learning(model, stage)
    assert names == [name for name, p in model.named_parameters() if p.requires_grad]
    return sorted({name.partition(".0.")[2] for name in names if ".0." in name})


GPT2 = GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=64)


def test_what_learns() -> None:
    model = llama()
    configure(model, decay="gated", learn_scale=True)
    ours = ["self_attn.fastmax.gate.bias", "self_attn.fastmax.gate.weight", "self_attn.fastmax.head_scale"]
    queries_keys = [*ours, "self_attn.k_proj.weight", "self_attn.q_proj.weight"]
    assert trained(model, Stage(1, 1e-3)) == sorted(queries_keys)
    whole = sorted([*queries_keys, "self_attn.o_proj.weight", "self_attn.v_proj.weight"])
    assert trained(model, Stage(1, 1e-3, train="attention")) == whole
    names, groups = learning(model, Stage(1, 1e-3, scale_lr=1.0, gate_lr=2.0, train="all"))
    assert len(names) == len(list(model.parameters())) == sum(len(group["params"]) for group in groups)
    assert [group["top"] for group in groups] == [1e-3, 1.0, 2.0]
    assert [len(group["params"]) for group in groups][1:] == [2, 4]
    assert trained(bert(), Stage(1, 1e-3)) == [
        f"attention.self.{x}.{y}" for x in ("key", "query") for y in ("bias", "weight")
    ]
    fused = {
        "attn.c_attn": (GPT2LMHeadModel, GPT2),
        "attention.query_key_value": (GPTNeoXForCausalLM, GPTNeoXConfig(**TINY)),
    }
    for name, (kind, config) in fused.items():
        assert trained(made(kind, config), Stage(1, 1e-3)) == [f"{name}.bias", f"{name}.weight"]


def bart_batch(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    inverse = {
        "decoder_input_ids": batch["input_ids"][:, :9],
        "decoder_attention_mask": torch.ones(3, 9, dtype=torch.long),
    }
    return {**batch, **inverse}


def test_other_architectures() -> None:
    """Encoder and decoder, layers that share their weights, sliding windows, a head on top."""
    bart = BartConfig(
        vocab_size=50, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=64,
    )  # fmt: skip
    short = SHORT | {"transfer": Stage(12, 1e-2)}
    translated = [bart_batch(b) for b in sentences(4, "right")]
    done = convert(made(BartForConditionalGeneration, bart), translated, decay="gated", **short)
    decays = {name for name, x in done.model.named_modules() if (child := parameters_of(x)) and child.gate is not None}
    assert {name.rpartition(".")[2] for name in decays} == {"self_attn"}
    assert len(decays) == 2
    assert {layer.name.rpartition(".")[2] for layer in done.layers} == {"self_attn", "encoder_attn"}
    assert len(done.layers) == 3
    assert done.losses["distill"] < done.losses["before"]
    albert = AlbertConfig(**TINY, embedding_size=16, num_hidden_groups=1, inner_group_num=1)
    done = convert(made(AlbertModel, albert), sentences(4, "right"), **short)
    assert len(done.layers) == 1
    assert done.layers[0].after < done.layers[0].before
    kinds = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
    ministral = MinistralConfig(**TINY, num_key_value_heads=2, head_dim=8, **kinds)
    done = convert(made(MinistralForCausalLM, ministral), sentences(4, "left"), decay="gated", **short)
    sliding, full = done.layers
    assert sliding.before == pytest.approx(0, abs=1e-6), "sliding layers keep softmax"
    assert 0 < full.after < full.before
    done = convert(bert(BertForSequenceClassification), sentences(4, "right"), **short)
    assert done.losses["transfer"] < done.losses["before"]
    done = convert(made(GPT2LMHeadModel, GPT2), [b | {"labels": b["input_ids"]} for b in sentences(4)], **short)
    assert done.layers[0].after < done.layers[0].before


def test_projections_start_from_the_directions_of_queries_and_keys() -> None:
    """Keep the norms and products of tokens in a subspace. Of others keep the most of both, whatever their sizes."""
    torch.manual_seed(0)
    basis = torch.linalg.qr(torch.randn(2, 8, 3, dtype=torch.float64)).Q.mT
    q, k = (torch.randn(2, 100, 3, dtype=torch.float64) @ basis for _ in range(2))
    rows = narrowing.principal(q.mT @ q, k.mT @ k, 3)
    assert rows.shape == (2, 3, 8)
    torch.testing.assert_close(rows @ rows.mT, torch.eye(3, dtype=torch.float64).expand(2, 3, 3))
    torch.testing.assert_close((q @ rows.mT) @ (k @ rows.mT).mT, q @ k.mT)
    torch.testing.assert_close((q @ rows.mT).norm(dim=-1), q.norm(dim=-1))
    q, k = torch.zeros(1, 4, 4, dtype=torch.float64), torch.zeros(1, 4, 4, dtype=torch.float64)
    q[0, 0, 0], k[0, 0, 1], k[0, 1, 2] = 1000.0, 1.0, 0.1
    kept = narrowing.principal(q.mT @ q, k.mT @ k, 2).abs()[0]
    torch.testing.assert_close(kept.sum(0), torch.tensor([1.0, 1.0, 0.0, 0.0], dtype=torch.float64))


def test_narrow_queries_and_keys(tmp_path: Path) -> None:
    teacher, batches = llama(), sentences(6)
    done = convert(teacher, batches, decay="gated", qk_head_dim=4, **SHORT | {"transfer": Stage(30, 1e-3)})
    narrow = done.model.get_submodule("model.layers.0.self_attn.fastmax.narrow")
    assert (narrow.query.shape, narrow.key.shape) == ((4, 4, 8), (2, 4, 8))
    assert all(layer.after < layer.before for layer in done.layers), str(done)
    assert done.losses["distill"] <= done.losses["transfer"] < done.losses["before"]
    untrained = llama()
    configure(untrained, decay="gated", learn_scale=True, memory=(2.0, 7.0), qk_head_dim=4)
    at_random = layers.layer_errors(untrained, layers.pairs(untrained, teacher), batches[0], learn=False)
    assert sum(layer.before for layer in done.layers) < sum(error.item() for error in at_random.values())
    names, groups = learning(untrained, Stage(1, 1e-3, scale_lr=1.0, gate_lr=2.0))
    assert "model.layers.0.self_attn.fastmax.narrow.query" in names
    assert any(p is untrained.model.layers[0].self_attn.fastmax.narrow.key for p in groups[0]["params"])
    done.model.save_pretrained(tmp_path / "student")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "student")
    x = batches[0]["input_ids"]
    assert torch.equal(again(x).logits, done.model(x).logits)
    path, options = tmp_path / "state.safetensors", {"qk_head_dim": 4, **SHORT}
    with pytest.raises(StopHereError):
        convert(teacher, batches, **options, checkpoint_path=path, save_every=2, watch=stopping_at("transfer", 5))
    resumed, whole = (convert(teacher, batches, **options, **more) for more in ({"checkpoint_path": path}, {}))
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name


def test_what_does_not_count_is_not_compared() -> None:
    teacher, (batch,) = bert(), sentences(1, "right")
    output = teacher(**batch, output_hidden_states=True)
    other = bert()
    configure(other)
    mine = other(**batch, output_hidden_states=True)
    counts = batch["attention_mask"].bool()
    for loss in (losses.hidden, losses.embeddings):
        whole = loss(mine, output, batch)
        assert whole > 0
        spoiled = [x.clone() for x in mine.hidden_states]
        for x in spoiled:
            x[~counts] = 7.0
        changed = type(mine)(last_hidden_state=spoiled[-1], hidden_states=tuple(spoiled))
        torch.testing.assert_close(loss(changed, output, batch), whole)
    causal, (batch,) = llama(), sentences(1, "left")
    theirs, spoiled = (causal(**batch) for _ in range(2))
    spoiled.logits[~batch["attention_mask"].bool()] += torch.randn(50)
    assert losses.logits(spoiled, theirs, batch).item() == pytest.approx(0, abs=1e-6)
    assert losses.logits(spoiled, theirs, {"input_ids": batch["input_ids"]}) > 0.01


def test_a_loss_of_ones_own() -> None:
    asked: list[set[str]] = []

    def mine(student: Any, teacher: Any, batch: Any) -> Tensor:
        asked.append(set(batch))
        assert len(student.hidden_states) == 3
        return (student.logits - teacher.logits).square().mean()

    done = convert(llama(), sentences(3), loss=mine, **SHORT)
    assert asked[0] == {"input_ids"}
    assert done.recipe["loss"].endswith("mine")
    assert done.losses["distill"] < done.losses["before"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"teacher": llama().train()}, "in training mode"),
        ({"teacher": llama().bfloat16()}, "must be in float32, it is in torch.bfloat16"),
        ({"transfer": Stage(1, 1e-3, train="all")}, 'transfer.train must not be "all"'),
        ({"loss": "cosine"}, "loss must be auto, logits, hidden, embeddings or a function, got 'cosine'"),
        ({"teacher": bert(), "loss": "logits"}, "needs a model with a head, this one returns BaseModel"),
        ({"held_out": 0}, "held_out must be at least 1, got 0"),
        ({"held_out": 9}, "held_out = 9 batches are set aside, but there are only 3"),
        ({"batches": iter(sentences(4))}, "the batches ended after 4, of which 2 are held out, and cannot be passed over"),
        ({"batches": sentences(2)}, "the batches ended after 2"),
        ({"windows": {"model.layers.7": 4}}, "no attention module is called 'model.layers.7'"),
        ({"save_every": 0}, "save_every must be at least 1, got 0"),
        ({"transfer": Stage(9, float("inf"))}, "the error is nan at step 2 of transfer: take smaller learning rates"),
        ({"order": 5}, "order must be from 1 to 4"),
        ({"qk_head_dim": 9}, "qk_head_dim must be at most the 8 channels of model.layers.0.self_attn, got 9"),
    ],
)  # fmt: skip
def test_refusals(change: dict[str, Any], message: str) -> None:
    arguments = {"teacher": llama(), "batches": sentences(3), **SHORT} | change
    with pytest.raises(ValueError, match=message):
        convert(**arguments)


def test_refusals_of_stages_and_masks() -> None:
    for wrong in ({"steps": -1}, {"lr": -1.0}, {"gate_lr": float("nan")}, {"train": "mlp"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Stage(**{"steps": 1, "lr": 1e-3} | wrong)
    keys = torch.tensor([[False, False, True, True]])
    mask = layers.softmax_mask(keys, 4)
    assert mask is not None
    assert mask.any(-1).all(), "a query that sees no key would be NaN"
    assert mask[0, 0, 2:].tolist() == [[False, False, True, False], [False, False, True, True]]
    with pytest.raises(ValueError, match="not packed ones"):
        layers.softmax_mask(torch.empty(0, 0, dtype=torch.bool), 4)
    eager = LlamaForCausalLM._from_config(LlamaConfig(**TINY), attn_implementation="eager").eval()
    with pytest.raises(ValueError, match=r'must use attn_implementation="sdpa", it has \'eager\''):
        convert(eager, sentences(3), **SHORT)


def test_a_stage_warms_up_and_cools_down() -> None:
    stage = Stage(100, 1e-3)
    rates = [stage.warmth(step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[9] == pytest.approx(1)
    assert rates[99] == pytest.approx(0)
    assert Stage(1, 1e-3).warmth(0) == pytest.approx(0), "a single step is the last"


def test_tokens_are_counted() -> None:
    assert batches_.tokens_of(sentences(1)[0]) == 48
    assert batches_.tokens_of(sentences(1, "left")[0]) == 16 + 11 + 8
    assert batches_.tokens_of({"pixel_values": torch.zeros(2, 3, 4, 4)}) == 6
    assert batches_.tokens_of({}) == 0


def test_a_model_without_a_head_is_loaded_again(tmp_path: Path) -> None:
    done = convert(bert(), sentences(3, "right"), **SHORT)
    done.model.save_pretrained(tmp_path)
    batch = sentences(1, "right")[0]
    again = AutoModel.from_pretrained(tmp_path)
    assert torch.equal(again(**batch).last_hidden_state, done.model(**batch).last_hidden_state)
