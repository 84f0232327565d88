"""The GPU made of Python keeps CUDA's rules. That a program which breaks one is found is in `test_stand_in_bugs.py`.

Here are what that cannot show: that what is allowed passes, what is counted, and how memory is shared.
"""

import pytest
import torch
from support.gpu import NAME, NotPermitted, plugged_in

from pflbench.engine import devices
from pflbench.run.arithmetic import exact_arithmetic

HERE = torch.device(NAME, 0)


@pytest.fixture
def gpu():
    with plugged_in() as world:
        yield world


def zeros(*shape):
    return torch.zeros(*shape, device=HERE)


def captured(step):
    module = devices.of(HERE)
    graph = module.CUDAGraph()
    with module.stream(module.current_stream(HERE)), module.graph(graph):
        step()
    return graph


def test_outside_of_the_plug_there_is_none():
    assert devices.accelerator() is None
    with pytest.raises(NotPermitted, match="No CUDA GPUs"):
        zeros(3)
    with plugged_in():
        kept = zeros(3)
    with pytest.raises(NotPermitted):
        kept + 1
    assert torch.tensor(1.0).device.type == "cpu"


@pytest.mark.skipif(torch.__version__ < "2.13", reason="earlier versions compile no product")
def test_a_product_that_is_compiled_is_refused_but_in_a_run(gpu):
    """`bmm` with an inner size of 1, since PyTorch 2.13."""
    a, b = torch.randn(2, 3, 1), torch.randn(2, 1, 4)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="C compiler"):
            torch.bmm(a.to(HERE), b.to(HERE))
        with exact_arithmetic(HERE):
            assert torch.equal(torch.bmm(a.to(HERE), b.to(HERE)).cpu(), a * b)


@pytest.mark.parametrize(
    ("operation", "wait"),
    [
        (lambda x: x.sum().item(), "aten::_local_scalar_dense"),
        (lambda x: x.cpu(), "aten::_to_copy"),
        (lambda x: x[x > 0], "aten::index.Tensor"),
        (lambda x: torch.equal(x, x), "aten::equal"),
        (lambda x: torch.tensor(1.0, device=x.device), "aten::copy_"),
        (lambda x: x[torch.tensor([0])], "aten::index.Tensor"),
        (lambda x: torch.isin(x, x.new_zeros(12)), "aten::isin.Tensor_Tensor"),
    ],
)
def test_what_waits_is_counted_and_refused_in_a_capture(gpu, operation, wait):
    x = zeros(3)
    before = sum(gpu.seen.waits.values())
    operation(x)
    assert sum(gpu.seen.waits.values()) == before + 1
    assert (wait, "?") in gpu.seen.waits
    with pytest.raises(NotPermitted, match="previous error during capture") as refused:
        captured(lambda: operation(x))
    assert "not permitted when stream is capturing" in str(refused.value.__context__)


def test_memory_is_counted_while_it_is_in_use():
    with plugged_in(memory=1 << 20):
        module = devices.of(HERE)
        x = zeros(1000)
        view = x[:1]
        del x
        assert module.memory_allocated(HERE) == 4096, "a view keeps it"
        del view
        assert (module.memory_allocated(HERE), module.max_memory_allocated(HERE)) == (0, 4096)
        with module.stream(module.Stream(HERE)):
            assert zeros(1000).numel()
        assert module.memory_reserved(HERE) == 2 * 4096, "no stream gets what is kept for another"
        module.empty_cache()
        assert module.memory_reserved(HERE) == 0
        module.reset_peak_memory_stats(HERE)
        assert (module.max_memory_allocated(HERE), module.max_memory_reserved(HERE)) == (0, 0)
        kept = zeros(200_000)
        with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
            zeros(200_000)
        del kept


def test_graphs_keep_their_memory():
    with plugged_in(memory=1 << 20):
        module, x = devices.of(HERE), zeros(1)
        graph = captured(lambda: x.add_(zeros(50_000).sum()))
        module.empty_cache()
        assert module.memory_reserved(HERE) > 200_000, "idle, and nobody else's"
        with pytest.raises(torch.OutOfMemoryError):
            zeros(250_000)
        del graph
        assert zeros(250_000).numel()


def test_a_capture_executes_nothing_and_a_replay_all(gpu):
    x, y, out = zeros(3), zeros(3), []
    graph = captured(lambda: out.append(x.add_(y + 1) * 1))
    assert x.raw.tolist() == [0, 0, 0]
    y += 1
    graph.replay()
    graph.replay()
    assert x.raw.tolist() == [4, 4, 4]
    assert out[0].cpu().isnan().all(), "what a capture allocated is no number outside"
