"""Optimisers by name: what they compute, what is refused, and that a run with any of them goes on unchanged."""

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from geomano_hpc.atomic import sha256, write_json
from geomano_hpc.config import Recipe, TrainingConfig, load_recipe
from geomano_hpc.config.choices import OPTIMIZERS
from geomano_hpc.errors import ConfigError
from geomano_hpc.training.engines.whole_state import check_goes_on
from geomano_hpc.training.loop import train
from geomano_hpc.training.optimizers import check_optimizer, make_optimizer
from geomano_hpc.training.records.run_folder import RunFolder
from tests.support.forked_ranks import Farm
from tests.support.training_runs import back_to, changed, curve, step_losses, what_a_run_computed

OWN = """
import torch

class Own(torch.optim.SGD):
    def __init__(self, parameters, lr, weight_decay, kept=None):
        super().__init__(parameters, lr=lr, weight_decay=weight_decay)
        self.kept = kept
    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            group["steps_of_its_own"] = group.get("steps_of_its_own", 0) + 1
            for parameter in group["params"]:
                state = self.state[parameter]
                state["count"] = state.get("count", 0) + 1
                parameter.data.mul_(1 - 1e-3 / state["count"] - 1e-3 / group["steps_of_its_own"])
                if self.kept:
                    state["kept"] = [1]

class Forgets(torch.optim.SGD):
    def __init__(self, parameters, lr, weight_decay, where):
        super().__init__(parameters, lr=lr)
        self.where, self.steps = where, 0
    def step(self, closure=None):
        super().step(closure)
        self.steps += 1
        if self.where == "group":
            self.steps = self.param_groups[0].setdefault("steps", torch.zeros(1)).add_(1).item()
        if self.where == "state":
            self.steps = self.state["shared"]["steps"] = self.state["shared"].get("steps", 0) + 1
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.mul_(1 - 1e-3 / self.steps)

def two_groups(parameters, lr, weight_decay):
    matrices, vectors = ([p for p in parameters if (p.ndim > 1) == wanted] for wanted in (True, False))
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=lr)

def first_only(parameters, lr, weight_decay):
    return torch.optim.SGD(parameters[:1], lr=lr)

def nothing(parameters, lr, weight_decay):
    return 3
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_optimizers.py").write_text(OWN)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_optimizers", raising=False)
    return "own_optimizers"


def config(**keys: object) -> TrainingConfig:
    return TrainingConfig.model_validate({"lr": 0.1, "weight_decay": 0.0, **keys})


def test_lion_steps_as_computed_by_hand() -> None:
    """m = 0: update sign(0.1 g), m = 0.01 g. Then with -g / 2: 0.9 m + 0.1 g' = 0.009 g - 0.05 g, the other sign."""
    parameter = nn.Parameter(torch.tensor([1.0, -2.0, 0.5]))
    optimizer = make_optimizer([parameter], config(optimizer="lion", weight_decay=0.5))
    gradient = torch.tensor([3.0, -1.0, 0.0])
    parameter.grad = gradient.clone()
    optimizer.step()  # p (1 - 0.1 * 0.5) - 0.1 sign
    torch.testing.assert_close(parameter.detach(), torch.tensor([0.95 - 0.1, -1.9 + 0.1, 0.475]))
    torch.testing.assert_close(optimizer.state[parameter]["exp_avg"], 0.01 * gradient)
    parameter.grad = -gradient / 2
    optimizer.step()
    torch.testing.assert_close(parameter.detach(), torch.tensor([0.85 * 0.95 + 0.1, -1.8 * 0.95 - 0.1, 0.475 * 0.95]))
    torch.testing.assert_close(optimizer.state[parameter]["exp_avg"], 0.99 * 0.01 * gradient - 0.01 * gradient / 2)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_name_is_an_optimiser_with_our_learning_rate(name: str) -> None:
    check_optimizer(config(optimizer=name))
    check_goes_on(config(optimizer=name))
    optimizer = make_optimizer([nn.Parameter(torch.ones(3))], config(optimizer=name, lr=0.25, weight_decay=0.125))
    (group,) = optimizer.param_groups
    assert (group["lr"], group["weight_decay"]) == (0.25, 0.125)


def test_default_is_the_benchmarks() -> None:
    assert type(make_optimizer([nn.Parameter(torch.ones(3))], TrainingConfig())) is torch.optim.AdamW


def test_options_reach_the_optimiser_as_numbers_from_the_command_line_too() -> None:
    said = [
        "training.optimizer=sgd",
        "training.optimizer_options.momentum=0.9",
        "training.optimizer_options.nesterov=true",
    ]
    optimizer = make_optimizer([nn.Parameter(torch.ones(3))], load_recipe("darcy_smoke", said).training)
    assert optimizer.param_groups[0]["momentum"] == 0.9
    assert optimizer.param_groups[0]["nesterov"] is True


FORGETS = {"optimizer": "own_optimizers:Forgets"}


def check(keys: dict[str, object]) -> None:
    check_optimizer(config(**keys))
    check_goes_on(config(**keys))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"optimizer": "adm"}, r"is not known; did you mean 'adamw?'\?; choose one of adamw, .*or package.module:name"),
        ({"optimizer": "adam", "optimizer_options": {"momentum": 0.9}}, "unexpected keyword argument 'momentum'"),
        ({"optimizer": "adam", "optimizer_options": {"betas": [2.0, 0.9]}}, "Invalid beta parameter"),
        ({"optimizer": "torch.optim:Muon"}, "Muon: ValueError: Muon only supports 2D parameters"),
        ({"optimizer": "torch.optim:LBFGS"}, "unexpected keyword argument 'weight_decay'"),
        ({"optimizer": "torch.optim:lr_scheduler"}, "is a module, which cannot be called"),
        ({"optimizer": "own_optimizers:nothing"}, "gave a int, expected a torch.optim.Optimizer"),
        ({"optimizer": "own_optimizers:first_only"}, "holds 1 of the 2 parameters"),
        ({"optimizer": "own_optimizers:Own", "optimizer_options": {"kept": 1}}, r"keeps 'kept' \(list\) for each"),
        (
            {"optimizer": "adafactor", "zero": 1},
            "does not treat each number of a parameter alone.* set training.zero=0",
        ),
        ({**FORGETS, "optimizer_options": {"where": "itself"}}, "does not go on from a checkpoint as if nothing"),
        ({**FORGETS, "optimizer_options": {"where": "group"}}, "does not go on from a checkpoint as if nothing"),
        ({**FORGETS, "optimizer_options": {"where": "state"}}, "keeps the state 'shared' for no parameter"),
        ({"optimizer": "adagrad", "zero": 2}, "keeps states from before its first step.* set training.zero=0"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(keys: dict[str, object], words: str, own: str) -> None:
    with pytest.raises((ConfigError, ValueError), match=words) as refused:
        check(keys)
    if isinstance(refused.value, ConfigError):
        assert str(refused.value).startswith("training.optimizer ")
        assert "\n" not in str(refused.value)


def test_refusal_comes_before_the_folder_is_made(tiny_recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no module nowhere"):
        train(changed(tiny_recipe, optimizer="nowhere.at:all"), RunFolder(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


SGD = {"optimizer": "sgd", "optimizer_options": {"momentum": 0.9}}
LION = {"optimizer": "lion"}


@pytest.mark.parametrize(
    "keys",
    [
        {"engine": "torch", **SGD},
        {"engine": "torch", "optimizer": "own_optimizers:Own", "scheduler": "constant"},
        pytest.param(
            {"engine": "torch", "optimizer": "adafactor", "scheduler": "cosine", "warmup": 0.25}, marks=pytest.mark.slow
        ),
        pytest.param({"zero": 0, **LION}, marks=pytest.mark.slow),
        {"zero": 1, **SGD},
        pytest.param({"zero": 2, "optimizer": "nadam"}, marks=pytest.mark.slow),
        pytest.param({"zero": 3, **LION}, marks=pytest.mark.slow),
        pytest.param({"zero": 1, "optimizer": "own_optimizers:Own", "scheduler": "constant"}, marks=pytest.mark.slow),
    ],
    ids=lambda keys: "-".join(str(value) for value in keys.values() if not isinstance(value, dict)),
)
def test_run_goes_on_bit_by_bit_with_any_optimiser(
    keys: dict[str, object], tiny_recipe: Recipe, own: str, tmp_path: Path
) -> None:
    recipe = changed(
        tiny_recipe, epochs=2, figures_every=0, log_every=1, checkpoint_steps=2, keep_checkpoints=9, **keys
    )
    folder = RunFolder(tmp_path / "run")
    train(recipe, folder)
    undisturbed = what_a_run_computed(folder)
    back_to(4, folder)
    train(recipe, folder)
    assert "resumed from" in folder.log_file.read_text()
    assert what_a_run_computed(folder) == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("zero", [1, 2])
def test_groups_of_an_optimiser_are_parted_saved_and_restored(
    zero: int, own: str, tiny_recipe: Recipe, tmp_path: Path
) -> None:
    keys = {"optimizer": f"{own}:two_groups", "epochs": 2, "log_every": 1, "checkpoint_steps": 2, "keep_checkpoints": 9}
    recipe, folder, whole = changed(tiny_recipe, zero=zero, **keys), RunFolder(tmp_path / "run"), tmp_path / "whole"
    train(recipe, folder)
    train(changed(tiny_recipe, engine="torch", **keys), RunFolder(whole))
    losses = step_losses(folder)
    assert list(losses.values()) == pytest.approx(list(step_losses(RunFolder(whole)).values()), rel=1e-5)
    undisturbed = what_a_run_computed(folder)
    back_to(4, folder)
    train(recipe, folder)
    assert what_a_run_computed(folder) == undisturbed


def test_two_ranks_go_on_with_the_state_of_one_and_the_other_engine(
    ranks: Farm, tiny_recipe: Recipe, tmp_path: Path
) -> None:
    """SGD with momentum and Lion: one rank, then two with ZeRO 2, then two with plain torch, on one curve."""
    for keys in (SGD, LION):
        # SGD moves the tiny model little, Lion every number: both must be told from a lost momentum.
        base = changed(tiny_recipe, epochs=4, log_every=1, keep_checkpoints=99, checkpoint_steps=4, **keys)
        whole = ranks.train(base, tmp_path / f"{keys['optimizer']}-whole", ranks=1)
        folder = ranks.train(changed(base, zero=2), tmp_path / f"{keys['optimizer']}-parted")
        back_to(4, folder)
        folder.config_file.unlink()  # a user keeps one recipe; what is tried here is the checkpoint
        ranks.train(changed(base, engine="torch"), folder.path)
        back_to(8, folder)
        folder.config_file.unlink()
        ranks.train(changed(base, zero=3), folder.path, ranks=1)
        expected = list(step_losses(whole).values())
        assert list(step_losses(folder).values()) == pytest.approx(expected, rel=1e-5)
        assert curve(folder)[-1] == pytest.approx(curve(whole)[-1], rel=1e-5)


def test_checkpoint_of_an_older_version_is_gone_on_from(tiny_recipe: Recipe, tmp_path: Path) -> None:
    """It had AdamW's steps once, and of the optimiser's groups only learning rate and betas."""
    recipe = changed(
        tiny_recipe, epochs=2, engine="torch", figures_every=0, log_every=1, checkpoint_steps=2, keep_checkpoints=9
    )
    folder = RunFolder(tmp_path / "run")
    train(recipe, folder)
    undisturbed = what_a_run_computed(folder)
    back_to(4, folder)
    newest = sorted(folder.checkpoints.iterdir())[-1]
    moments = load_file(newest / "optimizer.safetensors")
    save_file({name: t for name, t in moments.items() if not name.endswith(".step")}, newest / "optimizer.safetensors")
    state = json.loads((newest / "state.json").read_text())
    del state["engine"]["optimizer"]
    (group,) = state["engine"]["schedule"].pop("groups")
    state["engine"]["schedule"]["group"] = {"lr": group["lr"], "betas": group["betas"]}
    state["engine"]["adam_steps"] = 4.0
    write_json(newest / "state.json", state)
    hashed = ("model.safetensors", "optimizer.safetensors", "state.json")
    write_json(newest / "sha256.json", {name: sha256(newest / name) for name in hashed})
    train(recipe, folder)
    assert what_a_run_computed(folder) == undisturbed


def test_recipe_of_an_older_version_is_the_same_run(tiny_recipe: Recipe, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    content = tiny_recipe.model_dump(mode="json")
    for key in ("optimizer_options", "scheduler_options", "warmup"):
        del content["training"][key]
    content["loss"] = {"gradient_weight": content["loss"]["gradient_weight"]}
    folder.config_file.write_text(json.dumps(content))
    folder.write_recipe(tiny_recipe)  # an error, if it were another one
