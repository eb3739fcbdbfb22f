import math

import pytest
import torch
from torch import nn

from lib.editing.language import Sentences, invented_corpus
from lib.editing.model import (
    LanguageModel,
    corpus_facts,
    draw_embeddings,
    right_authors,
    token_losses,
    train_language,
)
from lib.mlp import random_mlp
from lib.numerics import generator
from lib.transformer.rope import rotate
from lib.transformer.training import Plan

D = 16
CORPUS = invented_corpus(12, generator=generator(0))
EMBEDDINGS = draw_embeddings(CORPUS, D, generator=generator(1)).double()
MLP = random_mlp(D, 20, D, "identity", generator=generator(2))
TEMPLATES = torch.arange(12)


def fresh_model():
    model = LanguageModel(EMBEDDINGS, MLP, generator=generator(3))
    for norm in (model.norm, model.head_norm):
        nn.init.uniform_(norm.weight, 0.5, 1.5)
    return model


def some_sentences():
    return CORPUS.sentences(torch.arange(12), TEMPLATES, CORPUS.answers)


def test_the_model_is_the_one_of_the_formulas():
    model = fresh_model().with_sharpness(2.0)
    tokens = some_sentences().tokens[3]
    e = EMBEDDINGS[tokens]
    z = e / e.square().mean(1, keepdim=True).sqrt() * model.norm.weight
    q, k = (rotate(net(z), torch.arange(len(z))) for net in (model.query, model.key))
    for t in range(len(z)):
        weights = torch.stack([(q[t] @ k[s] / math.sqrt(D)).exp() for s in range(t + 1)])
        x = (weights[:, None] * z[: t + 1]).sum(0) / weights.sum()
        a = 1 / (1 + (-2 * model.router(x)).exp())
        fact = MLP.B @ ((MLP.A @ (x / x.norm())) * (MLP.G @ (x / x.norm())))
        y = a * fact + (1 - a) * model.auxiliary(x)
        scores = EMBEDDINGS @ (y / y.square().mean().sqrt() * model.head_norm.weight)
        torch.testing.assert_close(model(tokens[None])[0, t], scores, rtol=1e-6, atol=1e-6)


def test_no_position_looks_ahead():
    model, tokens = fresh_model(), some_sentences().tokens[:2]
    changed = tokens.clone()
    changed[:, 5:] = 1
    torch.testing.assert_close(model(changed)[:, :5], model(tokens)[:, :5], rtol=1e-12, atol=1e-12)


def test_losses_ignore_filling_and_authors_are_told_apart():
    model, sentences = fresh_model(), some_sentences()
    other = torch.where(sentences.present, sentences.tokens, 7)
    assert not torch.equal(other, sentences.tokens)
    losses, routing, authors = token_losses(model, sentences)
    again, _, _ = token_losses(model, Sentences(other, sentences.present))
    assert torch.equal(losses, again)
    assert len(losses) == len(routing) == int(sentences.present.sum()) - 12 and authors.sum() == 12
    logs = model(sentences.tokens).log_softmax(-1)
    for i, last in enumerate(sentences.last.tolist()):
        expected = -logs[i, last - 1, sentences.tokens[i, last]]
        assert losses[authors][i].item() == pytest.approx(expected.item(), rel=1e-9)
    longer = Sentences(
        nn.functional.pad(sentences.tokens, (0, 3)), nn.functional.pad(sentences.present, (0, 3))
    )
    torch.testing.assert_close(token_losses(model, longer)[0], losses, rtol=1e-9, atol=1e-9)


def test_right_authors_are_those_with_the_largest_score():
    model, sentences = fresh_model(), some_sentences()
    ends = model(sentences.tokens)[torch.arange(12), sentences.last - 1]
    wrong = ends.argmax(1) != len(CORPUS) + CORPUS.answers
    assert torch.equal(right_authors(model, sentences), ~wrong)
    assert len(right_authors(model, sentences[:0])) == 0


def test_swapping_the_memory_leaves_every_other_number_as_it_is():
    model, other = fresh_model(), random_mlp(D, 30, D, "identity", generator=generator(4))
    before = {name: p.clone() for name, p in model.state_dict().items()}
    swapped = model.with_mlp(other)
    assert swapped.embeddings is model.embeddings
    for p, q in zip(swapped.mlp.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)
    rest = {name for name in before if not name.startswith("mlp")}
    assert {name for name in swapped.state_dict() if not name.startswith("mlp")} == rest
    for name in rest:
        assert torch.equal(swapped.state_dict()[name], before[name])
    with torch.no_grad():
        swapped.norm.weight.zero_()
    assert all(torch.equal(p, before[name]) for name, p in model.state_dict().items())


def test_a_model_keeps_a_frozen_copy_of_its_memory():
    other = random_mlp(D, 30, D, "identity", generator=generator(4)).requires_grad_(True)
    kept = [p.detach().clone() for p in other.parameters()]
    model = LanguageModel(EMBEDDINGS, other, generator=generator(3))
    models = model, model.with_sharpness(2.0), model.with_mlp(model.mlp), model.with_mlp(other)
    for mlp in (other, *(m.mlp for m in models)):
        assert all(p.requires_grad == (mlp is other) for p in mlp.parameters())
        with torch.no_grad():
            for p, q in zip(mlp.parameters(), kept, strict=True):
                assert torch.equal(p, q)  # though those before it were changed
                p.zero_()


def test_a_function_and_a_module_take_each_other_s_place():
    model = fresh_model()
    asked = model.with_mlp(lambda q: q)
    assert len(list(asked.parameters())) == len(list(model.parameters())) - 3
    assert asked.with_mlp(model.mlp).state_dict().keys() == model.state_dict().keys()


@pytest.mark.parametrize(
    ("mlp", "message"),
    [
        (random_mlp(D + 2, 20, D, "identity", generator=generator(2)), "cannot be multiplied"),
        (random_mlp(D, 20, D + 1, "identity", generator=generator(2)), r"an answer of shape"),
        (random_mlp(D, 20, D, "identity", generator=generator(2)).float(), "dtype|type"),
        (lambda q: q.float(), "torch.float32"),
    ],
)
def test_a_memory_of_another_size_or_type_is_refused(mlp, message):
    for put_in in (
        fresh_model().with_mlp,
        lambda mlp: LanguageModel(EMBEDDINGS, mlp, generator=generator(3)),
    ):
        with pytest.raises(ValueError, match=rf"mlp must map \(b, 16\) to \(b, 16\).*({message})"):
            put_in(mlp)


def test_only_embeddings_and_memory_are_frozen():
    names = {name for name, p in fresh_model().named_parameters() if not p.requires_grad}
    assert names == {"mlp.A", "mlp.G", "mlp.B"}


def test_a_sharper_router_squares_its_odds():
    model = fresh_model()
    x = model.questions(some_sentences())
    odds, sharp = (r / (1 - r) for r in (model.routing(x), model.with_sharpness(2.0).routing(x)))
    torch.testing.assert_close(sharp, odds**2, rtol=1e-9, atol=1e-9)
    assert model.sharpness == 1.0
    with pytest.raises(ValueError, match="sharpness must be positive and finite; got 0"):
        model.with_sharpness(0.0)


def test_facts_have_unit_keys_and_the_embeddings_of_authors():
    facts = corpus_facts(CORPUS, EMBEDDINGS)
    torch.testing.assert_close(facts.keys.norm(dim=1), torch.ones(12).double())
    assert torch.equal(facts.values, EMBEDDINGS[12:24])
    assert EMBEDDINGS.abs().max() <= math.sqrt(6 / D)
    for d in (0, 7):
        with pytest.raises(ValueError, match="d must be even and at least 2"):
            draw_embeddings(CORPUS, d, generator=generator(1))


def test_training_learns_the_language_and_resumes_exactly(tmp_path):
    path, plan = tmp_path / "run.pt", Plan(steps=60, batch=8, rate=1e-2, checked_every=20)
    mlp = random_mlp(D, 20, D, "identity", generator=generator(2)).float()

    def fresh():
        return LanguageModel(EMBEDDINGS.float(), mlp, generator=generator(3))

    whole = fresh()
    expected = train_language(whole, CORPUS, plan, stream=(5,))
    assert expected.losses[-1] < 0.7 * expected.losses[0]
    part, calls = fresh(), []

    def interrupted(*_):
        calls.append(0)
        if len(calls) > 70:  # after the checkpoint of step 20
            raise KeyboardInterrupt

    part.router.register_forward_hook(interrupted)
    with pytest.raises(KeyboardInterrupt):
        train_language(part, CORPUS, plan, stream=(5,), checkpoint=path)
    resumed = fresh()
    assert train_language(resumed, CORPUS, plan, stream=(5,), checkpoint=path) == expected
    for p, q in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(p, q)
    with pytest.raises(ValueError, match="checkpoint of another"):
        train_language(fresh(), CORPUS, plan, stream=(5,), checkpoint=path, leak_penalty=1.0)


def test_a_penalty_on_leaks_lowers_the_weight_of_the_memory_on_other_tokens():
    def routing(penalty):
        model = LanguageModel(EMBEDDINGS, MLP, generator=generator(3))
        plan = Plan(steps=60, batch=8, rate=1e-2, checked_every=60)
        train_language(model, CORPUS, plan, stream=(5,), leak_penalty=penalty)
        _, weights, authors = token_losses(model, some_sentences())
        return weights[~authors].mean().item()

    assert routing(1.0) < 0.5 * routing(0.0)
    with pytest.raises(ValueError, match="leak_penalty must be finite and >= 0; got -1"):
        routing(-1.0)
