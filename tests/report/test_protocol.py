"""A number stands beside a published one without a mark only where all that is known of the row agrees."""

from dataclasses import replace
from pathlib import Path

import pytest

from geomano_hpc.config import RolloutConfig, load_recipe
from geomano_hpc.models.geomano import GeomanoConfig
from geomano_hpc.models.transolver import TransolverConfig
from geomano_hpc.report.data_facts import DataFacts, data_facts
from geomano_hpc.report.protocol import differences
from geomano_hpc.report.published import ABLATION, MAIN
from geomano_hpc.report.published_settings import settings_of

TRANSOLVER = {
    "darcy": ["model.name=transolver", "training.lr=1e-3"],
    "navier_stokes": ["model.name=transolver", "model.embedding=256", "model.slices=32", "training.lr=1e-3"],
}
TRAINING = {
    "training.epochs=499": "499 of 500 epochs",
    "training.batch_size=8": "batch 8, not 4",
    "training.lr=1e-3": "lr 0.001, not 0.0003",
    "training.weight_decay=1e-4": "weight decay 0.0001, not 1e-05",
    "training.optimizer=adam": "optimizer adam, not adamw",
    "training.optimizer_options.eps=1e-6": "optimizer options {'eps': 1e-06}, not none",
    "training.scheduler=cosine": "scheduler cosine, not onecycle",
    "training.scheduler_options.div_factor=10": "scheduler options {'div_factor': 10}, not none",
    "training.warmup=0.1": "warmup 0.1, not none",
    "training.clip=1": "clip 1, not 0.1",
    "training.clip=null": "clip none, not 0.1",
    "loss.name=relative_l1": "loss relative_l1, not relative_l2",
    "loss.options.eps=1": "options of the loss {'eps': 1}, not none",
    "loss.gradient_weight=0": "gradient loss 0, not 0.1",
    "compute.precision=bfloat16": "precision bfloat16, not float32",
    "data.train_samples=999": "999 of 1000 training samples",
    "data.test_samples=5": "5 of 200 test samples",
}
MODEL = {
    "model.depth=2": "depth 2, not 8",
    "model.embedding=32": "embedding 32, not 64",
    "model.dstate=8": "dstate 8, not 16",
    "model.expand=2": "expand 2, not 1",
    "model.mlp_ratio=4": "mlp ratio 4, not 2",
    "model.domain=3d": "domain 3d, not 2d",
    "model.orders=corners": "orders corners, not paper",
    "model.correction=1111": "correction 1111, not 0011",
    "model.correction_form=state": "correction form state, not equation",
    "model.positional_encoding=true": "positional encoding yes, not no",
    "model.encoder=local model.patch=2": "encoder local, not pointwise; patch 2, not 1",
    "model.kind=1d model.orders=corners": "kind 1d, not 2d; orders corners, not paper",
    "model.position_frequencies=4": "position frequencies 4, not 8",
    "model.periodic=auto": "periodic auto, not off",
    "model.conv_size=7": "conv size 7, not 3",
    "model.mlp_conv=5": "mlp conv 5, not 0",
    "model.spectral_modes=4": "spectral modes 4, not 0",
    "model.exact_hold=true": "exact hold yes, not no",
    "model.transport=4": "transport 4, not 0",
    "model.path=linear": "path linear, not normed",
    "model.dt_rank=full": "dt rank full, not auto",
    "model.dt_range=[0.01,1.0]": "dt range [0.01, 1.0], not [0.001, 0.1]",
    "model.scan=false": "scan no, not yes",
    "model.scan_bias=true": "scan bias yes, not no",
    "model.way_out=linear": "way out linear, not gated",
}
OF_COST = ("batch", "loss", "options of the loss", "gradient loss", "precision", "999 of", "5 of")


def found(store: Path, recipe: str, *changes: str, of_cost: bool = False) -> str:
    last = dict(change.split("=", 1) for change in changes)  # of a key that is given twice
    changed = load_recipe(recipe, [f"data.store={store}", *(f"{key}={value}" for key, value in last.items())])
    return "; ".join(differences(store.stem, changed, data_facts(changed.data), of_cost))


@pytest.mark.parametrize("problem", ["darcy", "navier_stokes"])
def test_recipe_of_the_paper_and_every_row_of_its_ablation_are_not_marked(
    problem: str, full_stores: dict[str, Path]
) -> None:
    assert found(full_stores[problem], problem) == ""
    for kind, position, correction in ABLATION[problem]:
        row = [f"model.kind={kind}", f"model.positional_encoding={position}", f"model.correction={correction}"]
        assert found(full_stores[problem], problem, *row) == ""


@pytest.mark.parametrize("changes", [*TRAINING, *MODEL])
def test_each_key_of_the_protocol_is_marked(changes: str, full_stores: dict[str, Path]) -> None:
    words = {**TRAINING, **MODEL}[changes]
    assert found(full_stores["darcy"], "darcy", *changes.split()) == words
    cost = words if changes in MODEL or words.startswith(OF_COST) else ""
    assert found(full_stores["darcy"], "darcy", *changes.split(), of_cost=True) == cost


def test_every_key_of_the_model_is_among_those_that_are_marked() -> None:
    named = {change.partition("=")[0].partition(".")[2] for changes in MODEL for change in changes.split()}
    assert named == set(GeomanoConfig.model_fields) - {"name", "scan_backend", "discretisation"}


def test_keys_of_the_other_problem_are_its_own(full_stores: dict[str, Path]) -> None:
    store = full_stores["navier_stokes"]
    assert found(store, "navier_stokes", "training.clip=0.1") == "clip 0.1, not none"
    assert found(store, "navier_stokes", "model.kind=2d") == "kind 2d, not 1d"  # with this correction in no row
    assert found(store, "navier_stokes", "training.batch_size=4") == "batch 4, not 2"


ROLLOUT = {
    "rollout.target=increment": "output of the model increment, not frame",
    "rollout.frames_in=1": "limit of the frames seen 1, not none",
    "rollout.noise=0.03": "noise 0.03, not 0",
    "rollout.steps_per_window=2": "limit of the windows to a step 2, not none",
    "rollout.pairs=all rollout.frames_in=2": "steps trained on all, not window",
    "rollout.pushforward=1": "pushforward 1, not 0",
}


@pytest.mark.parametrize("changes", ROLLOUT)
@pytest.mark.parametrize("of_cost", [False, True])
def test_each_key_of_rollouts_is_marked(changes: str, of_cost: bool, full_stores: dict[str, Path]) -> None:
    said = found(full_stores["navier_stokes"], "navier_stokes", *changes.split(), of_cost=of_cost).split("; ")
    assert ROLLOUT[changes] in said
    assert {*ROLLOUT.values()} & {*said} == {ROLLOUT[changes]}


def test_every_key_of_rollouts_is_among_those_that_are_marked() -> None:
    assert {changes.partition("=")[0].partition(".")[2] for changes in ROLLOUT} == set(RolloutConfig.model_fields)


WITHOUT_EFFECT = (
    "training.accumulate=2",
    "training.engine=torch",
    "training.seed=3",
    "training.evaluate_every=5",
    "training.warmup=0.3",  # which is what onecycle has anyway
    "training.loggers=[]",
    "compute.compile=true",
    "compute.activation_checkpointing=true",
    "model.scan_backend=reference",
    "model.discretisation=pixel",
    "data.loading=stream",
)


@pytest.mark.parametrize("change", WITHOUT_EFFECT)
def test_what_changes_no_error_is_not_marked(change: str, full_stores: dict[str, Path]) -> None:
    assert found(full_stores["darcy"], "darcy", change) == ""


def test_memory_that_is_saved_is_marked_in_the_costs(full_stores: dict[str, Path]) -> None:
    for change, words in {
        "compute.activation_checkpointing=true": "activation checkpointing yes, not no",
        "training.accumulate=2": "accumulate 2, not 1",
    }.items():
        assert found(full_stores["darcy"], "darcy", change, of_cost=True) == words


@pytest.mark.parametrize("problem", ["darcy", "navier_stokes"])
def test_transolver_is_compared_with_its_own_published_settings(problem: str, full_stores: dict[str, Path]) -> None:
    store = full_stores[problem]
    assert found(store, problem, *TRANSOLVER[problem]) == ""
    assert found(store, problem, *TRANSOLVER[problem], "training.lr=3e-4") == "lr 0.0003, not 0.001"
    for key, default in TransolverConfig().model_dump(exclude={"name"}).items():
        value = 2 * default if key != "embedding" else 512
        word = key.replace("_", " ")
        assert found(store, problem, *TRANSOLVER[problem], f"model.{key}={value}").startswith(f"{word} {value:g}, not ")


def test_tiny_fno_is_not_the_published_one_and_no_fno_of_the_package_is(full_stores: dict[str, Path]) -> None:
    doubts = "FNO of the package neuraloperator, not of the benchmark; the published configuration of FNO is not known"
    as_published = ["model.name=fno", "model.embedding=128", "training.lr=1e-3", "training.clip=null"]
    assert found(full_stores["darcy"], "darcy", *as_published) == doubts
    tiny = [*as_published, "model.embedding=4", "model.modes=2"]
    assert found(full_stores["darcy"], "darcy", *tiny) == f"embedding 4, not 128; modes 2, not 12; {doubts}"
    in_time = found(full_stores["navier_stokes"], "navier_stokes", "model.name=fno")
    assert in_time.endswith("is not known; trained on true frames, not on its own")
    assert "batch 2, not 20; lr 0.0003, not 0.0005" in in_time


def test_baseline_whose_published_configuration_is_not_known_is_always_marked(full_stores: dict[str, Path]) -> None:
    words = "U-NO of the package neuraloperator, not of the benchmark; the published configuration of U-NO is not known"
    assert found(full_stores["darcy"], "darcy", "model.name=uno") == words
    assert found(full_stores["darcy"], "darcy", "model.name=uno", of_cost=True) == words
    for problem in ABLATION:
        for name in set(MAIN) - {"GeoMaNO", "Transolver"}:
            settings = settings_of(problem, {"name": name.lower()})
            assert settings is not None
            assert f"the published configuration of {name} is not known" in settings.doubts


def test_of_a_model_that_the_paper_does_not_have_only_the_data_is_compared(full_stores: dict[str, Path]) -> None:
    own = ["model={name: 'torch.nn:Conv2d', options: {kernel_size: 1}}", "training.epochs=3", "data.test_samples=5"]
    assert found(full_stores["darcy"], "darcy", *own) == "5 of 200 test samples"


DATA = {
    "data generated, not the benchmark's files": {"generated": True},
    "data of mine.mat, not the benchmark's files": {"files": ("mine.mat",)},
    "files of the data not recorded": {"files": None},
    "viscosity 0.001, not 1e-05": {"viscosity": 1e-3},
    "stride 2, not 1": {"stride": 2},
    "splits of its own, not the benchmark's": {"drawn": True},
    "normalised": {"normalised": True},
    "999 of 1000 training samples": {"train_samples": 999},
    "100 validation samples, where the paper has none": {"validation_samples": 100},
    "199 of 200 test samples": {"test_samples": 199},
    "32 x 32 points, not 64 x 64": {"grid": (32, 32)},
    "5 frames given and 10 predicted": {"frames": (5, 10)},
    "data not at hand: its grid and samples are not checked": {"at_hand": False},
}


@pytest.mark.parametrize("words", DATA)
def test_each_fact_of_the_data_is_marked(words: str, full_stores: dict[str, Path]) -> None:
    recipe = load_recipe("navier_stokes", [f"data.store={full_stores['navier_stokes']}"])
    facts: DataFacts = replace(data_facts(recipe.data), **DATA[words])  # type: ignore[arg-type]
    assert differences("navier_stokes", recipe, facts) == [words]
    of_size = any(word in words for word in ("samples", "points", "frames", "at hand"))
    assert differences("navier_stokes", recipe, facts, of_cost=True) == ([words] if of_size else [])
