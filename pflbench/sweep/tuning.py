"""What `tune` tries: the search space of each method, the trials of a sampler, and the settings that are run again.

Every method of a study may spend the same: so many trials of so many rounds. A trial is a run. Optuna's study is made anew, in
memory, for each suggestion, from the stored trials: nothing else has to be kept. No suggestion depends on a method's name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import product
from typing import Any

from sqlalchemy import Engine

from pflbench import methods
from pflbench.errors import UserError, unknown
from pflbench.methods.cards import SUFFIX
from pflbench.run.options import RunOptions
from pflbench.run.plan import Parsed, method_name, plan, seed_list
from pflbench.spec import RunSpec
from pflbench.store import sweeps
from pflbench.store.studies import Scores, StoredStudy, Trial, of_sweep
from pflbench.sweep.grid import MOST, at_point, checked, listed

Space = Mapping[str, Any]
"""Option of `run` or METHOD.NAME -> a list of values, or an interval as {"low": 0.001, "high": 0.1}."""

SEARCHED = ("lr", "momentum", "weight-decay", "batch-size", "local-epochs")  # options of training that a study may search
_DERIVED = ("methods", "rounds_in_all")  # parts of a definition that a message does not name
FACTOR = 3  # successive halving: a third of the settings goes on, with three times the rounds
DRAWS = 50  # of a sampler, until one is new


@dataclass(frozen=True)
class StudyPlan:
    """A study as it was asked for. definition: as JSON types, the same for the same command.

    wanted: the options that its runs share. by_default: the methods with their paper's ranges. notes: values of these that are
    not possible here.
    """

    wanted: RunOptions
    definition: Mapping[str, Any]
    by_default: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    parsed: Parsed = field(default_factory=dict, repr=False)

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(self.definition["methods"])

    def space(self, method: str) -> Space:
        found: Space = self.definition["methods"][method]["space"]
        return found

    def spec(self, method: str, values: Mapping[str, Any] = {}, rounds: int | None = None, seed: int | None = None) -> RunSpec:
        """The run of a setting, by default with the study's rounds and seed of the search."""
        options = at_point({"method": method, **self.definition["methods"][method]["fixed"], **values}, self.wanted)
        seed = self.definition["seed"] if seed is None else seed
        rounds = self.definition["rounds"] if rounds is None else rounds
        (spec,) = plan(replace(options, seeds=None, seed=seed, rounds=rounds), self.parsed)
        return spec

    def possible(self, check: Callable[[RunSpec], object]) -> StudyPlan:
        """The study without values of papers' ranges that `run` or `check` refuses. Raises UserError for one of --search."""
        notes, of_methods = list(self.notes), dict(self.definition["methods"])
        for method in self.methods:
            space = dict(self.space(method))
            for name, values in self.space(method).items():
                if not (refused := self._refused(method, name, check)):
                    continue
                first = next(iter(refused.values()))
                if method not in self.by_default or "." not in name:
                    raise first
                space[name] = [value for value in values if value not in refused]
                notes.append(f"Not searched: {name} = {_in_words([*refused])}. {first.message}")
            of_methods[method] = {**of_methods[method], "space": {name: values for name, values in space.items() if values}}
        return replace(self, definition={**self.definition, "methods": of_methods}, notes=tuple(notes))

    def _refused(self, method: str, name: str, check: Callable[[RunSpec], object]) -> dict[Any, UserError]:
        """The searched values of an option, or ends of its interval, that are not possible beside the defaults."""
        values, refused = self.space(method)[name], {}
        for value in values.values() if isinstance(values, dict) else values:
            try:
                check(self.spec(method, {name: value}))
            except UserError as error:
                refused[value] = error
        return refused

    def records(self) -> list[dict[str, Any]]:
        """For each method what is searched, and how many settings that are."""
        found = []
        for method in self.methods:
            space = self.space(method)
            named = [f"{name} {_in_words(values)}" for name, values in space.items()]
            settings = "any" if any(isinstance(values, dict) for values in space.values()) else len(grid(space))
            found.append({"method": method, "searched": ", ".join(named) or "nothing", "settings": settings})
        return found

    def go_on(self, study: StoredStudy, scores: Scores, together: int) -> tuple[StoredStudy, list[RunSpec]]:
        """The study with its next trials, or with the settings to run again if there are none; and their runs."""
        new = self.next_trials(study, scores, together)
        if new:
            study = replace(study, trials={m: (*study.trials.get(m, ()), *new.get(m, ())) for m in self.methods})
        else:
            new = self.again(study, scores)
            study = replace(study, again={method: tuple(trials) for method, trials in new.items()})
        return study, [spec for method, trials in new.items() for trial in trials for spec in self.specs(method, trial)]

    def next_trials(self, study: StoredStudy, scores: Scores, together: int) -> dict[str, list[Trial]]:
        """The next trials of each method that has any; all earlier ones have ended. together: of tpe, of each method."""
        sampler, found = self.definition["sampler"], {}
        for method in self.methods:
            tried = study.trials.get(method, ())
            left = self.definition["trials"] - len(tried)
            if sampler == "halving":
                found[method] = self._next_rung(method, tried, scores)
            else:
                found[method] = self._new(method, tried, scores, min(left, together) if sampler == "tpe" else left)
        return {method: trials for method, trials in found.items() if trials}

    def again(self, study: StoredStudy, scores: Scores) -> dict[str, list[Trial]]:
        """What is run on fresh seeds: the defaults of each method, then its best settings."""
        found = {}
        for method in self.methods:
            best = [trial.values for trial in study.ranked(method, scores)[: self.definition["best"]]]
            found[method] = [self._on_fresh_seeds(method, values) for values in ({}, *best)]
        return found

    def specs(self, method: str, trial: Trial) -> list[RunSpec]:
        """The runs of a trial."""
        seeds = [self.definition["seed"], *self.definition["seeds"]]
        every = (self.spec(method, trial.values, trial.rounds, seed) for seed in seeds)
        return [spec for spec in every if spec.key in trial.keys]

    def _on_fresh_seeds(self, method: str, values: Mapping[str, Any]) -> Trial:
        seeds = self.definition["seeds"]
        return Trial(values, self.definition["rounds"], tuple(self.spec(method, values, seed=seed).key for seed in seeds))

    def _next_rung(self, method: str, tried: Sequence[Trial], scores: Scores) -> list[Trial]:
        before: list[Trial] = []
        for number, rounds in rungs(self.definition["trials"], self.definition["rounds"]):
            here = [trial for trial in tried if trial.rounds == rounds]
            if not here and not before:
                return self._new(method, (), scores, number, rounds)
            if not here:
                best = sorted(before, key=lambda trial: -(trial.score(scores) or 0.0))[:number]
                return [Trial(one.values, rounds, (self.spec(method, one.values, rounds).key,)) for one in best]
            before = here
        return []

    def _new(self, method: str, tried: Sequence[Trial], scores: Scores, number: int, rounds: int | None = None) -> list[Trial]:
        """Settings that were not tried yet; fewer than `number` if there are no more."""
        rounds = rounds or self.definition["rounds"]
        seen, new = {trial.keys for trial in tried}, list[Trial]()
        points = iter(grid(self.space(method)))
        while len(new) < number:
            for values in self._candidates(method, tried, scores, len(tried) + len(new), points):
                with suppress(UserError):  # of values that are only together impossible
                    trial = Trial(values, rounds, (self.spec(method, values, rounds).key,))
                    if trial.keys not in seen:
                        break
            else:
                return new
            seen.add(trial.keys)
            new.append(trial)
        return new

    def _candidates(
        self, method: str, tried: Sequence[Trial], scores: Scores, number: int, points: Iterator[dict[str, Any]]
    ) -> Iterator[dict[str, Any]]:
        """Settings for trial `number`, the first of which that is new is taken: of the sampler, then the next of the grid."""
        if self.definition["sampler"] == "tpe" or any(isinstance(values, dict) for values in self.space(method).values()):
            yield from (self._suggestion(method, tried, scores, f"{number} {draw}") for draw in range(DRAWS))
        yield from points

    def _suggestion(self, method: str, tried: Sequence[Trial], scores: Scores, draw: str) -> dict[str, Any]:
        """A suggestion of Optuna's sampler, whose seed is of the study's seed, the trial's number and the draw."""
        import optuna
        from optuna.samplers import RandomSampler, TPESampler

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        seed = int(sha256(f"{self.definition['seed']} {draw}".encode()).hexdigest()[:8], 16)
        first = max(1, self.definition["trials"] // 4)  # trials that TPE draws at random
        tpe = self.definition["sampler"] == "tpe"
        study = optuna.create_study(
            direction="maximize", sampler=TPESampler(seed=seed, n_startup_trials=first) if tpe else RandomSampler(seed=seed)
        )
        plain = {name.removeprefix(f"{method}."): name for name in self.space(method)}
        distributions = {short: _distribution(self.space(method)[name]) for short, name in plain.items()}
        for trial in tried:
            params = {short: trial.values[name] for short, name in plain.items()}
            study.add_trial(
                optuna.trial.create_trial(params=params, distributions=distributions, value=trial.score(scores) or 0.0)
            )
        suggested = study.ask(distributions).params
        return {name: _rounded(suggested[short], self.space(method)[name]) for short, name in plain.items()}


def define(wanted: RunOptions, searches: Sequence[str], sampler: str, trials: int, best: int) -> StudyPlan:
    """The plan of a study. searches: as "ditto.lam=0.01,0.1" or "lr=0.001..0.1". wanted.seeds: the fresh ones.

    A method whose hyperparameters are not named by `searches` is searched over its paper's ranges. Raises UserError for what
    `run` would refuse, and for seeds of the search among the fresh ones.
    """
    seed = wanted.seed or 0
    seeds = seed_list(replace(wanted, seed=None)) if wanted.seeds else [seed + k for k in (1, 2, 3)]
    if seed in seeds:
        raise UserError(
            f"--seeds has seed {seed}, which the search uses.", f"Take others, such as --seeds {seed + 1}-{seed + 3}."
        )
    names = tuple(dict.fromkeys(method_name(name, wanted.ala) for name in wanted.methods))
    fixed, spaces = _fixed(wanted.settings, names), _spaces(searches, names)
    if twice := [f"--{name}" for name in SEARCHED if name in spaces[""] and getattr(wanted, name.replace("-", "_")) is not None]:
        raise UserError(f"{twice[0]} is given and searched.", "Leave out one of them.")
    of_methods = {}
    for name in names:
        own = spaces[name] or {
            f"{name}.{hyper.name}": list(hyper.search) for hyper in methods.hyperparameters(name) if hyper.search
        }
        space = {key: values for key, values in own.items() if spaces[name] or key not in fixed[name]} | spaces[""]
        if both := [key for key in space if key in fixed[name]]:
            raise UserError(f"{both[0]} is given by --set and searched.", "Leave out one of them.")
        if sampler == "grid" and any(isinstance(values, dict) for values in space.values()):
            raise UserError("A grid needs values, not an interval.", "Write NAME=V,V, or take --sampler random or tpe.")
        grid(space)
        of_methods[name] = {"fixed": fixed[name], "space": space}
    definition: dict[str, Any] = {
        "sampler": sampler,
        "trials": trials,
        "best": best,
        "seed": seed,
        "seeds": seeds,
        "rounds": wanted.rounds,
    }
    by_default = frozenset(name for name in names if not spaces[name])
    found = StudyPlan(replace(wanted, methods=names, ala=False), {**definition, "methods": of_methods}, by_default)
    bases = {name: found.spec(name) for name in names}
    rounds = next(iter(bases.values())).train.rounds
    spent = sum(number * each for number, each in rungs(trials, rounds)) if sampler == "halving" else trials * rounds
    whole = {name: {**of, "run": bases[name].key} for name, of in of_methods.items()}
    definition |= {
        "rounds": rounds,
        "rounds_in_all": spent,
        "val_share": wanted.val_share,
        "preset": wanted.preset,
        "methods": whole,
    }
    return replace(found, definition=json.loads(json.dumps(definition))).possible(lambda spec: None)


def begun(engine: Engine, name: str, planned: StudyPlan) -> tuple[StoredStudy, list[RunSpec]]:
    """The study of this name as it is stored, or a new one; and its runs. Raises UserError if it was begun otherwise."""
    known = next((sweep for sweep in sweeps.listed(engine) if sweep.name == name), None)
    if known is None:
        return StoredStudy(name, planned.definition, {}, {}), []
    study = of_sweep(known.name, known.environment)
    if study is None:
        raise UserError(f"'{name}' is a sweep of this database.", "Take another name.")
    other = [part for part, value in planned.definition.items() if study.definition.get(part) != value]
    if other:
        begun_with = "; ".join(f"{part} {_in_words(study.definition.get(part))}" for part in other if part not in _DERIVED)
        raise UserError(
            f"The study '{name}' was begun with {begun_with or 'other options of its methods'}.",
            "Repeat that command, or take another name: runs that are there are not trained again.",
        )
    return study, list(known.specs)


def rungs(trials: int, rounds: int) -> list[tuple[int, int]]:
    """Successive halving: the number of settings and their rounds, rung by rung."""
    steps = 0
    while FACTOR ** (steps + 1) <= min(trials, rounds):
        steps += 1
    return [(trials // FACTOR**k, rounds // FACTOR ** (steps - k)) for k in range(steps + 1)]


def grid(space: Space) -> list[dict[str, Any]]:
    """All combinations, in an order that is mixed and always the same; none if there is an interval."""
    if any(isinstance(values, dict) for values in space.values()):
        return []
    if math.prod(map(len, space.values())) > MOST:
        raise UserError(f"The grid has more than {MOST:,} combinations.", "Name fewer values by --search.")
    points = [dict(zip(space, values, strict=True)) for values in product(*space.values())]
    return sorted(points, key=lambda point: sha256(json.dumps(list(point.values())).encode()).hexdigest())


def with_best(wanted: RunOptions, study: StoredStudy, scores: Scores) -> list[RunSpec]:
    """The runs of `run --params best:STUDY`. Raises UserError for methods that it lacks and for options that it decides."""
    if wanted.preset is not None:
        raise UserError(f"--params best:{study.name} decides the preset.", "Leave out --params or --preset.")
    specs: list[RunSpec] = []
    names = dict.fromkeys(method_name(name, wanted.ala) for name in wanted.methods)
    given = _fixed(wanted.settings, tuple(names))
    for name in names:
        values = {**study.winner(name, scores).values}
        own = study.definition["methods"][name]["fixed"]
        for key in (*values, *own):
            if key in given[name] or (key in SEARCHED and getattr(wanted, key.replace("-", "_")) is not None):
                raise UserError(f"--params best:{study.name} decides {key}.", f"Leave out --params, or your own {key}.")
        options = at_point({"method": name, **own, **given[name], **values}, wanted)
        specs += plan(replace(options, ala=False, preset=study.definition["preset"]))
    return specs


def _fixed(settings: Sequence[str], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The values of --set by method. Raises UserError for a list and for a method that is not tuned."""
    found: dict[str, dict[str, Any]] = {name: {} for name in names}
    for key, values in listed(settings).items():
        if len(values) > 1:
            raise UserError(
                f"--set {key} has several values.", f"Give it one; `tune --search {key}={','.join(values)}` searches them."
            )
        owner, whole = _owner(key, names)
        found[owner][whole] = values[0]
    return found


def _spaces(searches: Sequence[str], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What --search gives, by method; under "" options of training, for all methods."""
    found: dict[str, dict[str, Any]] = {name: {} for name in ("", *names)}
    for text in searches:
        name, equals, several = (part.strip() for part in text.partition("="))
        if not equals or not several:
            raise UserError(
                f"--search {text}: expected NAME=V,V or NAME=LOW..HIGH.", "For example --search ditto.lam=0.01,0.1,1."
            )
        owner, whole = _owner(name, names) if "." in name else ("", name.replace("_", "-"))
        if not owner and whole not in SEARCHED:
            raise unknown("option of --search", name, (*SEARCHED, "METHOD.NAME"))
        if whole in found[owner]:
            raise UserError(f"--search gives {whole} twice.", "Give it once, with all its values.")
        low, dots, high = several.partition("..")
        values = [_number(part.strip()) for part in ((low, high) if dots else several.split(","))]
        if not owner:
            values = [checked(whole, value)[1] for value in values]
        elif dots and not any(isinstance(value, str) for value in values):
            values = _in_its_type(owner, whole, values)
        if not dots:
            found[owner][whole] = list(dict.fromkeys(values))
        elif any(isinstance(value, str) for value in values) or not values[0] < values[1]:
            raise UserError(
                f"--search {text}: {several} is no interval.", "Write two numbers, the smaller one first: 0.001..0.1."
            )
        else:
            found[owner][whole] = {"low": values[0], "high": values[1]}
    return found


def _owner(key: str, names: Sequence[str]) -> tuple[str, str]:
    """The method of "ditto.lam" among those that are tuned, and the whole name: "ditto+ala", "ditto+ala.lam"."""
    method, _, name = key.partition(".")
    method = methods.in_any_case(method)
    owner = method if method in names else method + SUFFIX
    if owner not in names:
        methods.load(method)
        raise UserError(f"{key}: {method} is not run by this command.", f"Add -m {method}, or leave it out.")
    return owner, f"{owner}.{name}"


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _in_its_type(owner: str, whole: str, ends: Sequence[Any]) -> list[Any]:
    """The ends of an interval as the hyperparameter's type has them. Raises UserError for fractions of whole numbers."""
    kinds = next((h.type for h in methods.hyperparameters(owner) if f"{owner}.{h.name}" == whole), "").split(" | ")
    if "float" in kinds:
        return list(map(float, ends))
    if "int" in kinds and any(isinstance(end, float) for end in ends):
        raise UserError(f"{whole} takes whole numbers.", "Write both ends of the interval without a point.")
    return list(ends)


def _rounded(value: Any, values: Any) -> Any:
    """Four digits of a float from an interval: more make no difference, and tables show them."""
    if not (isinstance(values, dict) and isinstance(value, float)):
        return value
    return min(max(float(f"{value:.4g}"), values["low"]), values["high"])


def _in_words(values: Any) -> str:
    if isinstance(values, dict):
        return f"{values['low']:g} to {values['high']:g}"
    return ", ".join(map(str, values)) if isinstance(values, list) else str(values)


def _distribution(values: Any) -> Any:
    """Optuna's: of an interval of floats over a decade or more by the logarithm."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if not isinstance(values, dict):
        return CategoricalDistribution(values)
    low, high = values["low"], values["high"]
    if isinstance(low, int) and isinstance(high, int):
        return IntDistribution(low, high)
    return FloatDistribution(float(low), float(high), log=0 < 10 * low <= high)
