"""Models of the user's own: from a file or a package, their head and blocks, what is refused, their keys, and runs with them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.command import Shell, parsed, write
from support.nets import NETS
from torch import nn

from pflbench import methods, models, plugins
from pflbench.contract.small import federation, train
from pflbench.engine.flat import Flat
from pflbench.errors import UserError
from pflbench.run.flops import Costs

DIGITS = (1, 8, 8)


def built(text: str, shape: tuple[int, ...] = DIGITS, classes: int = 10, vocabulary: int | None = None) -> models.Backbone:
    name, own = models.find(text)
    return models.build(name, shape, classes, vocabulary, own)


def body(text: str, forward: str = "return self.fc(F.relu(self.hidden(x.flatten(1))))", more: str = "") -> str:
    """A file with a model `Own`, whose constructor ends with `text`."""
    return NETS + (
        f"\n\nclass Own(nn.Module):\n{more}\n    def __init__(self, input_shape, classes):\n        super().__init__()\n"
        f"        self.hidden, self.fc = nn.Linear(64, 16), nn.Linear(16, classes)\n        {text or 'pass'}\n\n"
        f"    def forward(self, x):\n        {forward}\n"
    )


def places(model: nn.Module) -> tuple[list[str], list[list[str]]]:
    """The parameters of the head, and of each block, by the layout of the engine."""
    flat = Flat(model)
    names = [[span.name.removeprefix("net.") for span in flat.within(block)] for block in (flat.head, *flat.blocks)]
    return names[0], names[1:]


# -- what is found in a model --------------------------------------------------------------------------------------------


def test_head_and_blocks_are_found(shell: Shell) -> None:
    """The last linear layer; every child with parameters, from the top."""
    file = write("nets.py", NETS)
    head = ["fc.weight", "fc.bias"]
    assert places(built(f"{file}:Net")) == (head, [head, ["norm.weight", "norm.bias"], ["conv.weight", "conv.bias"]])
    assert places(built(f"{file}:layers")) == (["3.weight", "3.bias"], [["3.weight", "3.bias"], ["1.weight", "1.bias"]])
    assert models.find(file) == models.find(f"{file}:Net"), "the one class of the file"


def test_head_and_blocks_as_the_model_says(shell: Shell) -> None:
    """In any order; a parameter of the module itself lies below all layers, and a head need not be one linear layer."""
    text = body(
        "self.scale = nn.Parameter(torch.ones(1)); self.norm = nn.LayerNorm(16); self.top = nn.Sequential(self.norm, self.fc)\n"
        "        del self.fc, self.norm",
        "return self.top(F.relu(self.hidden(x.flatten(1) * self.scale)))",
        '    head = "top"\n    blocks = [["scale", "hidden"], "top"]',
    )
    head, blocks = places(built(f"{write('own.py', text)}:Own"))
    assert head == ["top.0.weight", "top.0.bias", "top.1.weight", "top.1.bias"]
    assert blocks == [head, ["scale", "hidden.weight", "hidden.bias"]]
    as_found = body("self.scale = nn.Parameter(torch.ones(1))", "return self.fc(F.relu(self.hidden(x.flatten(1) * self.scale)))")
    assert places(built(f"{write('found.py', as_found)}:Own"))[1] == [["fc.weight", "fc.bias"], blocks[1]]


def test_features_are_what_the_head_is_given(shell: Shell) -> None:
    model = built(f"{write('nets.py', NETS)}:Net").eval()
    x = torch.randn(3, *DIGITS)
    features = model.features(x)
    assert features.shape == (3, 64)
    assert torch.equal(model.get_submodule(model.head)(features), model(x))
    assert not model.get_submodule(model.head)._forward_pre_hooks, "nothing is left behind"
    by_name = built(f"{write('own.py', body('', 'return self.fc(input=self.hidden(x.flatten(1)))'))}:Own")
    features = by_name.features(x)
    assert torch.equal(by_name.get_submodule(by_name.head)(features), by_name(x))


def test_initial_parameters_follow_from_the_seed_alone(shell: Shell) -> None:
    """As PyTorch draws them from it, whether the model is looked at for the first time or not; and so are its logits."""
    file = write("nets.py", NETS + "\n\n# never seen before")
    drawn = []
    for _ in range(2):
        torch.manual_seed(5)
        drawn.append(Flat(built(f"{file}:layers")).row())
    torch.manual_seed(5)
    plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    assert all(torch.equal(row, Flat(plain).row()) for row in drawn)
    torch.manual_seed(5)
    x = torch.ones(2, *DIGITS)
    assert torch.equal(built(f"{file}:layers")(x), plain(x))


def test_a_constructor_that_reads_values(shell: Shell) -> None:
    """It is shown, estimated and run; without data it has the same parameters, shared ones once, and nothing is drawn."""
    text = body(
        "self.grid = torch.linspace(0, 1, 3); self.rates = [x.item() for x in self.grid]\n"
        "        self.n = int(torch.tensor(input_shape).prod())\n"
        "        self.hidden, self.again = nn.Linear(self.n, 64), nn.Linear(64, 64)\n"
        "        self.again.weight = self.hidden.weight\n"
        "        self.register_buffer('seen', torch.zeros(())); del self.fc; self.fc = nn.Linear(64, classes)",
        "return self.fc(self.again(self.hidden(x.flatten(1))) * self.rates[1] * self.grid[2])",
    )
    file = write("own.py", text)
    drawn = torch.get_rng_state()
    with torch.device("meta"):
        model = built(f"{file}:Own")
    assert torch.equal(torch.get_rng_state(), drawn)
    assert {tensor.device.type for tensor in (*model.parameters(), *model.buffers())} == {"meta"}
    assert {name: p.shape for name, p in model.named_parameters()} == {
        name: p.shape for name, p in built(f"{file}:Own").named_parameters()
    }
    assert parsed(shell("models", "show", f"{file}:Own", "--json"))["parameters"] == 64 * 64 + 64 + 64 + 64 * 10 + 10
    command = ("run", "-d", "digits", "-r", "1", "-m", "fedavg", "--clients", "3", "--model", f"{file}:Own", "--engine", "loop")
    assert parsed(shell(*command, "--dry-run", "--json"))[0]["memory"]["total"] > 0
    assert parsed(shell(*command, "-q", "--json"))[0]["status"] == "finished"


def test_lazy_layers_and_texts(shell: Shell) -> None:
    text = (
        NETS
        + "\n\ndef lazy(classes):\n    return nn.Sequential(nn.Flatten(), nn.LazyLinear(8), nn.ReLU(), nn.Linear(8, classes))\n"
    )
    text += (
        "\n\nclass Words(nn.Module):\n    def __init__(self, classes, vocabulary, width=6):\n        super().__init__()\n"
        "        self.embedding, self.out = nn.Embedding(vocabulary, width), nn.Linear(width, classes)\n"
        "    def forward(self, x):\n        return self.out(self.embedding(x).mean(1))\n"
    )
    file = write("more.py", text)
    assert built(f"{file}:lazy").net[1].weight.shape == (8, 64)
    assert built(f"{file}:Words", (20,), 4, 50).net.embedding.weight.shape == (50, 6)
    with pytest.raises(UserError, match="asks for 'vocabulary', which these data do not have"):
        built(f"{file}:Words")


VIEWS = {  # as tutorials write it, and on samples that are no images
    "a view": ("return self.fc(F.relu(self.conv(x)).view(-1, 4 * 36))", DIGITS),
    "samples of one dimension": ("return self.fc(F.relu(self.conv(x.view(-1, 1, 8, 8))).view(-1, 4 * 36))", (64,)),
}


@pytest.mark.parametrize("case", VIEWS)
@pytest.mark.parametrize("name", ["fedavg", "fedproto"])
def test_a_view_after_a_convolution_trains_alike_on_both_executors(shell: Shell, case: str, name: str) -> None:
    """FedProto has a module of its own around the model. Another model keeps the format that is faster."""
    forward, shape = VIEWS[case]
    added = "del self.hidden, self.fc; self.conv, self.fc = nn.Conv2d(1, 4, 3), nn.Linear(4 * 36, classes)"
    file, method = write("own.py", body(added, forward)), methods.make(methods.spec(name, {}))

    def trained(engine: str) -> torch.Tensor:
        of = federation(lambda *_: built(f"{file}:Own", shape), engine, n=(9, 5), shape=shape, classes=10, around=method.model)
        return method.deployed(train(method, of, 1))

    torch.testing.assert_close(trained("loop"), trained("batched"), rtol=0, atol=1e-10)
    assert not built(f"{file}:Own", shape).channels_last
    assert built(f"{write('nets.py', NETS)}:Net").channels_last


# -- what is refused -----------------------------------------------------------------------------------------------------

FED = "self.hidden(x.flatten(1))"
AGAIN = "gives other logits when it sees the same"
CLASSES = {  # what is added to the constructor, what forward returns, what the class says -> what is told
    "another shape": ("", "self.fc(self.hidden(x))", "", r"does not work on samples 1 x 8 x 8 \(line \d+\): RuntimeError"),
    "softmax": ("", f"self.fc({FED}).softmax(1)", "", "does not return what its head fc gives"),
    "two results": ("", f"self.fc({FED}), x", "", "returns a tuple for"),
    "infinity": ("", f"self.fc({FED} / 0.0)", "", "not finite"),
    "no such head": ("", f"self.fc({FED})", 'head = "top"', 'says head = "top", but has no such module'),
    "a head below others": (
        "self.last = nn.LayerNorm(16)",
        f"self.fc({FED})",
        'head = "fc"',
        "parameters of its head fc as its last ones",
    ),
    "a head that shares": ("self.top = nn.Linear(16, classes); self.top.weight = self.fc.weight", "x", "", "and for itself"),
    "blocks with a gap": ("", f"self.fc({FED})", 'blocks = ["fc"]', "do not hold every parameter once"),
    "blocks mixed up": (
        "self.a = self.fc; del self.fc; self.fc = nn.Linear(10, classes)",
        f"self.fc(self.a({FED}))",
        'blocks = [["fc", "hidden"], "a"]',
        "hidden side by side",
    ),
    "unused parameters": (
        "fc = self.fc; del self.fc; self.no = nn.Linear(2, 2); self.fc = fc",
        f"self.fc({FED})",
        "",
        "does not use its parameters no.weight, no.bias",
    ),
    "a lambda that holds the model": (
        "self.act = lambda h: self.norm(h); fc = self.fc; del self.fc; self.norm = nn.LayerNorm(16); self.fc = fc",
        f"self.fc(self.act({FED}))",
        "",
        "does not use its parameters norm.weight, norm.bias",
    ),
    "frozen parameters": ("self.hidden.requires_grad_(False)", f"self.fc({FED})", "", "parameters: hidden.weight, hidden.bias"),
    "dropout": ("self.d = nn.Dropout(0.2)", f"self.fc(self.d({FED}))", "", r"draws random numbers in training \(d\)"),
    "noise": ("", f"self.fc({FED} * np.random.rand())", "", "draws random numbers in training:"),
    "another beginning": (
        "self.hidden.bias.data.fill_(random.random())",
        f"self.fc({FED})",
        "",
        "differently .* with hidden.bias",
    ),
    "what cannot be copied": (
        "nn.utils.weight_norm(self.hidden)",
        f"self.fc({FED})",
        "",
        "cannot be copied: Only Tensors created",
    ),
    "a memory": ("self.n = []", f"self.n.append(1) or self.fc({FED} * len(self.n))", "", AGAIN),
    "a generator of its own": ("self.g = torch.Generator()", f"self.fc({FED} * torch.rand(16, generator=self.g))", "", AGAIN),
}
FUNCTIONS = {
    "a parameter that nobody knows": ("def own(width):\n    return None", "asks for 'width', which these data do not have"),
    "no module": ("def own():\n    return 3", "gives no torch.nn.Module, but 3"),
    "an error in it": ("def own(classes):\n    return nn.Linear(None, classes)", r"10 classes \(line \d+\): TypeError"),
    "no linear layer": ("def own(classes):\n    return nn.Sequential(nn.Conv2d(1, classes, 8), nn.Flatten())", "no linear layer"),
    "other classes": ("def own():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 7))", "returns 2 x 7 .* not 2 x 10"),
}
REFUSED = {case: (body(added, f"return {out}", f"    {said}"), words) for case, (added, out, said, words) in CLASSES.items()}
REFUSED["a random tensor beside the buffers"] = (
    body("self.mixed = torch.randn(64, 64)", "return self.fc(self.hidden(x.flatten(1) @ self.mixed))"), "draws mixed at random",
)  # fmt: skip
REFUSED |= {case: (f"{NETS}\n\n{text}\n", words) for case, (text, words) in FUNCTIONS.items()}


@pytest.mark.parametrize("case", REFUSED)
def test_what_could_not_be_trained_rightly_is_refused(shell: Shell, case: str) -> None:
    text, words = REFUSED[case]
    with pytest.raises(UserError, match=words) as caught:
        built(f"{write('own.py', text)}:{'own' if case in FUNCTIONS else 'Own'}")
    assert caught.value.hint


def test_the_classes_of_a_head_of_several_layers(shell: Shell) -> None:
    text = body("self.fc = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, classes))", more="    head = 'fc'")
    flat = Flat(built(f"{write('own.py', text)}:Own"))
    assert flat.classes == 10


def test_what_is_not_trained_but_allowed(shell: Shell) -> None:
    """Rates of 0, buffers that training changes, attention without dropout, features that are kept to be looked at."""
    text = body(
        "self.d, self.a = nn.Dropout(0.0), nn.MultiheadAttention(16, 2, batch_first=True); del self.fc\n"
        "        self.fc = nn.Linear(16, classes); self.register_buffer('seen', torch.zeros(()))",
        "self.seen.add_(1); h = self.kept = self.d(self.hidden(x.flatten(1)))[:, None]\n"
        "        return self.fc(h[:, 0] + self.a(h, h, h)[0][:, 0])",
    )
    assert built(f"{write('own.py', text)}:Own").head == "net.fc"


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("nowhere.py:Net", "nowhere.py cannot be read"),
        ("nets.py:Nt", "nets.py has no 'Nt'. Write nets.py:Net or nets.py:layers."),
        ("nets.py:F", "'F' of nets.py is a module, no model"),
        ("two.py", "does not say which of its models is meant. Write two.py:Net or two.py:Other"),
        ("broken.py:Net", "broken.py cannot be imported (line 3): ZeroDivisionError"),
        ("named.py:mlp", "'mlp' of named.py has the name of a built-in model"),
        ("nett", "Unknown model 'nett'"),
    ],
)
def test_a_model_that_is_not_there(shell: Shell, model: str, words: str) -> None:
    write("nets.py", NETS)
    write("two.py", NETS + "\n\nclass Other(Net):\n    pass\n")
    write("broken.py", "import torch\n\n1 / 0\n")
    write("named.py", NETS.replace("layers", "mlp"))
    assert words in " ".join(shell.refused("run", "-m", "fedavg", "--model", model).split())


# -- keys and runs -------------------------------------------------------------------------------------------------------

RUN = ("run", "-d", "digits", "-r", "1", "-q", "--json")


def test_the_key_follows_the_file_s_content_and_not_its_place(shell: Shell) -> None:
    def key(text: str, *options: str) -> str:
        return parsed(shell("run", "-m", "fedavg", "--dry-run", "--json", "--model", text, *options))[0]["key"]

    first, copied = write("nets.py", NETS), write("elsewhere/copy.py", NETS)
    changed = write("changed.py", NETS + "# changed\n")
    assert key(f"{first}:Net") == key(f"{copied}:Net") == key(copied)
    assert len({key(f"{first}:Net"), key(f"{first}:layers"), key(f"{changed}:Net"), key("mlp")}) == 4


def test_a_run_with_an_own_model(shell: Shell) -> None:
    """Its code is stored; a change is another run."""
    file = write("nets.py", NETS)
    command = (*RUN, "-m", "fedavg", "-m", "fedrep", "--clients", "3", "--model", f"{file}:layers")
    rows = parsed(shell(*command))
    assert [row["status"] for row in rows] == ["finished", "finished"]
    shown = parsed(shell("runs", "show", "1", "--json"))
    assert shown["spec"]["own_model"] == {"path": f"./{file}", "content": shown["environment"]["model"]["sha256"]}
    assert parsed(shell(*command)) == rows, "what is finished is not run again"
    write("nets.py", NETS + "\n# changed\n")
    assert {row["run"] for row in parsed(shell(*command))} == {3, 4}
    table = shell("table", "accuracy").out
    assert "layers" in table
    assert table.partition("Accuracy in")[0].count("code ") == 2, "two files of the same name"


def test_all_clients_at_once_or_a_reason(shell: Shell) -> None:
    text = body("", "return self.fc(self.hidden(x.flatten(1) * (2 if x.sum().item() > 1e9 else 1)))")
    command = (*RUN, "-m", "fedavg", "--model", f"{write('own.py', text)}:Own")
    told = shell.refused(*command, "--engine", "batched")
    assert "Model 'Own' cannot be computed for all clients at once: RuntimeError: vmap" in told
    assert "--engine loop" in told
    assert parsed(shell(*command))[0]["status"] == "finished"


def test_a_file_that_changed_or_went_since_a_specification_was_made(shell: Shell) -> None:
    file = write("nets.py", NETS)
    name, own = models.find(f"{file}:layers")
    write("nets.py", NETS + "\n# changed\n")
    with pytest.raises(UserError, match="has changed"):
        models.build(name, DIGITS, 10, None, own)
    Path(file).unlink()
    with pytest.raises(UserError, match="cannot be read: No such file"):
        models.build(name, DIGITS, 10, None, own)


# -- packages ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed package with three models, of which one is none and one has the name of a built-in one."""
    site = tmp_path / "site"
    info = site / "pfl_nets-1.2.dist-info"
    write(str(info / "METADATA"), "Metadata-Version: 2.1\nName: pfl-nets\nVersion: 1.2\n")
    write(
        str(info / "entry_points.txt"), "[pflbench.models]\ntiny-net = pfl_nets:layers\nnone = pfl_nets:F\nmlp = pfl_nets:Net\n"
    )
    write(str(site / "pfl_nets" / "__init__.py"), NETS)
    monkeypatch.syspath_prepend(str(site))
    yield site
    for name in [name for name in sys.modules if name.startswith("pfl_nets")]:
        del sys.modules[name]


def test_models_of_installed_packages(shell: Shell, package: Path) -> None:
    assert models.names()[-3:] == ["mlp", "none", "tiny-net"]
    assert "pfl_nets" not in sys.modules, "a name is known without an import"
    (row,) = parsed(shell(*RUN, "-m", "fedavg", "--model", "tiny-net"))
    assert row["status"] == "finished"
    shown = parsed(shell("runs", "show", "1", "--json"))
    assert shown["environment"]["model"]["from"] == "pfl-nets 1.2"
    assert "'none' of pfl-nets 1.2 is a module, no model" in shell.refused(*RUN, "-m", "fedavg", "--model", "none")
    told = shell.refused(*RUN, "-m", "fedavg", "--model", "mlp")
    assert "'mlp' stands for several models: built into pflbench and of pfl-nets 1.2" in told
    name, own = models.find("tiny-net")
    assert own is not None
    with pytest.raises(UserError, match="has changed"):
        models.build(name, DIGITS, 10, None, own.model_copy(update={"content": "0" * 64}))
    write(str(package / "pfl_nets-1.2.dist-info" / "entry_points.txt"), "")
    plugins._installed_on.cache_clear()
    with pytest.raises(UserError, match="of a package that is not installed here"):
        models.build(name, DIGITS, 10, None, own)


def test_layers_that_a_method_freezes_are_known_in_a_model_of_ones_own(shell: Shell) -> None:
    text = body(
        "self.mid, top = nn.Linear(16, 16), self.fc; del self.fc; self.fc = top",
        "return self.fc(F.relu(self.mid(F.relu(self.hidden(x.flatten(1))))))",
    )
    flat = Flat(built(f"{write('own.py', text)}:Own"))
    costs = Costs(flat, torch.zeros(2, *DIGITS))
    below = [costs.frozen(slice(block.start, flat.size)) for block in flat.blocks]
    assert below == [2 * 64 * 16 + 2 * 16 * 16, 2 * 64 * 16, 0], "of the head, and of the layers below it"


@pytest.mark.parametrize("method", ["fedproto", "fedcp", "fedrod"])
def test_a_head_of_other_parameters_than_a_linear_layers_is_refused(shell: Shell, method: str) -> None:
    file = write("own.py", body("self.fc = nn.utils.parametrizations.weight_norm(self.fc)"))
    assert "a linear layer as its head" in shell.refused(*RUN, "-m", method, "--model", f"{file}:Own")
