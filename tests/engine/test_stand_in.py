"""The GPU made of Python keeps CUDA's rules: what it refuses, what it counts, what it finds."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from support.gpu import NAME, NotPermitted, OnGpu, plugged_in
from support.gpu.captures import EMPTY

from pflbench.engine import devices
from pflbench.run.execution import exact_arithmetic

HERE, THERE = torch.device(NAME, 0), torch.device(NAME, 1)


@pytest.fixture
def gpu():
    with plugged_in() as world:
        yield world


def zeros(*shape):
    return torch.zeros(*shape, device=HERE)


def numbers(tensor):
    """Without a wait."""
    return tensor.raw.tolist()


# -- there and not there --------------------------------------------------------------------------------------------------


def test_outside_of_the_plug_there_is_none():
    assert devices.accelerator() is None
    assert devices.of(HERE).device_count() == 0
    with pytest.raises(NotPermitted, match="No CUDA GPUs"):
        zeros(3)
    with plugged_in(devices=3):
        assert devices.accelerator() == NAME
        assert torch.accelerator.device_count() == 3
        kept = zeros(3)
    assert devices.accelerator() is None
    with pytest.raises(NotPermitted):
        kept + 1
    assert torch.tensor(1.0).device.type == "cpu"


# -- where tensors are ----------------------------------------------------------------------------------------------------


def test_devices_are_not_mixed(gpu):
    x = zeros(3)
    for other in (torch.zeros(3), torch.zeros(3, device=THERE), torch.zeros(3, device="meta")):
        with pytest.raises((NotPermitted, RuntimeError), match="device"):
            x + other
    with pytest.raises(NotPermitted, match="same device"):
        x.index_copy(0, torch.tensor([0]), x[:1])
    with pytest.raises(NotPermitted, match="ordinal"):
        torch.zeros(3, device=f"{NAME}:2")
    with pytest.raises(TypeError, match="numpy"):
        x.numpy()
    assert numbers(x + torch.tensor(2.0)) == [2, 2, 2], "a number of the host will do"
    assert x.to(THERE).add_(1).device == THERE
    assert not gpu.seen.races


def test_a_device_without_an_index_is_the_current_one(gpu):
    module = devices.of(HERE)
    assert torch.zeros(3, device=NAME).device == HERE
    with module.stream(module.Stream(THERE)):
        assert torch.zeros(3, device=NAME).device == THERE
    assert torch.zeros(3, device=NAME).device == HERE


def test_some_functions_take_no_device_without_an_index(gpu):
    for asked in (torch.pygpu.set_device, torch.pygpu.get_per_process_memory_fraction):
        with pytest.raises(ValueError, match="with a specified index"):
            asked(torch.device(NAME))
    torch.pygpu.set_per_process_memory_fraction(0.5, HERE)
    assert torch.pygpu.get_per_process_memory_fraction(HERE) == 0.5


def test_a_product_that_is_compiled_is_refused_but_in_a_run(gpu):
    """`bmm` with an inner size of 1, in PyTorch 2.13."""
    a, b = torch.randn(2, 3, 1), torch.randn(2, 1, 4)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="C compiler"):
            torch.bmm(a.to(HERE), b.to(HERE))
        with exact_arithmetic(HERE):
            assert torch.equal(torch.bmm(a.to(HERE), b.to(HERE)).cpu(), a * b)


@pytest.mark.parametrize("index", [0, 1])
def test_the_backward_pass_has_a_thread_of_its_own(index):
    with plugged_in(trains_on=index) as gpu:
        device = torch.device(NAME, index)
        module = torch.nn.Linear(2, 1).double().to(device)
        module(torch.ones(3, 2, dtype=torch.float64).to(device)).sum().backward()
        assert numbers(module.weight.grad) == [[3, 3]]
        assert module.weight.grad.device == device
        assert gpu.seen.threads > {threading.get_ident()}


def test_what_a_tensor_can(gpu):
    x = torch.arange(4.0, device=HERE)
    assert f"{x[2]:.1f}" == "2.0"
    assert isinstance(copy.deepcopy(torch.nn.Parameter(x)), torch.nn.Parameter)
    assert x.tolist() == [0, 1, 2, 3]
    assert numbers(torch.eye(2, device=HERE)) == [[1, 0], [0, 1]]
    assert numbers(x.new_tensor([1, 2])) == [1, 2]
    x[x > 1] = 0
    assert numbers(x) == [0, 1, 0, 0]
    assert x.unsqueeze_(0).shape == (1, 4)


def test_tensors_go_into_a_file_and_back(gpu, tmp_path):
    torch.save({"x": [zeros(2) + 1]}, tmp_path / "x.pt")
    (found,) = torch.load(tmp_path / "x.pt", map_location=HERE, weights_only=True)["x"]
    assert isinstance(found, OnGpu)
    assert numbers(found) == [1, 1]


# -- waits ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "wait"),
    [
        (lambda x: x.sum().item(), "aten::_local_scalar_dense"),
        (lambda x: bool((x > 0).any()), "aten::_local_scalar_dense"),
        (lambda x: x.cpu(), "aten::_to_copy"),
        (lambda x: x.tolist(), "aten::_to_copy"),
        (lambda x: x[x > 0], "aten::index.Tensor"),
        (lambda x: x.nonzero(), "aten::nonzero"),
        (lambda x: torch.equal(x, x), "aten::equal"),
        (lambda x: torch.tensor(1.0, device=x.device), "aten::copy_"),
        (lambda x: x[torch.tensor([0])], "aten::index.Tensor"),
        (lambda x: x.masked_select(x > 0), "aten::masked_select"),
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


def test_what_does_not_wait(gpu):
    x, index = zeros(3), torch.tensor([0, 2]).to(HERE)
    gpu.seen.waits.clear()
    x[index] += 1
    x.sum().add_(2).to("meta")
    torch.isin(x, x)
    torch.where(x > 0, x, 0).masked_fill(x > 0, 1).to(THERE)
    assert not gpu.seen.waits


def test_waits_are_told_by_their_place(gpu):
    devices.synchronise(HERE)
    ((what, where),) = gpu.seen.waits
    assert what == "synchronize"
    assert where.startswith("engine/devices.py:")


def test_what_is_odd_is_told(gpu):
    zeros(3).cpu()
    assert not gpu.seen.odd
    zeros(3).to("cpu", non_blocking=True)
    zeros(3)[torch.tensor([0])]
    torch.rand(3, device=HERE)
    zeros(3).prod()
    assert len(gpu.seen.odd) == 4


# -- memory ---------------------------------------------------------------------------------------------------------------


def test_memory_that_was_not_written_is_no_number(gpu):
    assert torch.empty(3, device=HERE).cpu().isnan().all()
    assert zeros(3).new_empty(2, 2).cpu().isnan().all()
    with pytest.raises(IndexError):
        zeros(3)[torch.empty(1, dtype=torch.int64, device=HERE)]


def test_memory_is_counted_while_it_is_in_use():
    with plugged_in(memory=1 << 20):
        module = devices.of(HERE)
        x = zeros(1000)
        view = x[:1]
        assert module.memory_allocated(HERE) == 4096
        del x
        assert module.memory_allocated(HERE) == 4096, "a view keeps it"
        del view
        assert (module.memory_allocated(HERE), module.max_memory_allocated(HERE)) == (0, 4096)
        with module.stream(module.Stream(HERE)):
            assert zeros(1000).numel()
        assert module.memory_reserved(HERE) == 2 * 4096, "no stream gets what is kept for another"
        module.empty_cache()
        assert zeros(1000).numel()
        assert (module.memory_reserved(HERE), module.mem_get_info(HERE)) == (4096, (2**20 - 4096, 2**20))
        module.empty_cache()
        assert module.memory_reserved(HERE) == 0
        module.reset_peak_memory_stats(HERE)
        assert (module.max_memory_allocated(HERE), module.max_memory_reserved(HERE)) == (0, 0)
        kept = zeros(200_000)
        with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
            zeros(200_000)
        assert torch.zeros(200_000, device=THERE).shape == kept.shape, "each device has its own"


def test_graphs_keep_their_memory():
    with plugged_in(memory=1 << 20):
        module, x = devices.of(HERE), zeros(1)
        graph = captured(lambda: x.add_(zeros(50_000).sum()))
        assert module.memory_allocated(HERE) == 512
        assert module.memory_reserved(HERE) > 200_000
        module.empty_cache()
        assert module.memory_reserved(HERE) > 200_000, "idle, and nobody else's"
        with pytest.raises(torch.OutOfMemoryError):
            zeros(250_000)
        del graph
        assert zeros(250_000).numel()


# -- captures -------------------------------------------------------------------------------------------------------------


def captured(step, pool=None):
    module = devices.of(HERE)
    graph = module.CUDAGraph()
    with module.stream(module.current_stream(HERE)), module.graph(graph, pool=pool):
        step()
    return graph


def test_a_capture_executes_nothing_and_a_replay_all(gpu):
    x, y = zeros(3), zeros(3)
    graph = captured(lambda: x.add_(y + 1))
    assert numbers(x) == [0, 0, 0]
    y += 1
    graph.replay()
    graph.replay()
    assert numbers(x) == [4, 4, 4]
    assert (gpu.seen.replays, gpu.seen.replayed) == (2, 4)


def test_what_a_capture_allocated_is_no_number_outside(gpu):
    x, out = zeros(3), []
    graph = captured(lambda: out.append(x + 1))
    assert out[0].cpu().isnan().all()
    graph.replay()
    assert out[0].cpu().isnan().all()


def test_a_replay_that_uses_memory_which_was_given_back_is_found(gpu):
    x, box = zeros(3), [zeros(3)]
    graph = captured(lambda: x.add_(box[0]))
    graph.replay()
    box.clear()
    with pytest.raises(NotPermitted, match="given back"):
        graph.replay()


def test_captures_are_made_aside_and_one_at_a_time(gpu):
    module, x = devices.of(HERE), zeros(3)
    with pytest.raises(NotPermitted, match="non-default stream"):
        module.CUDAGraph().capture_begin()
    for step in (lambda: captured(lambda: x.add_(1)), lambda: module.synchronize(HERE), captured(lambda: x.add_(1)).replay):
        with pytest.raises(NotPermitted):
            captured(step)
    with pytest.warns(UserWarning, match=EMPTY[:20]):
        captured(lambda: None)
    with pytest.raises(NotPermitted) as refused, module.graph(module.CUDAGraph()), module.stream(module.default_stream(HERE)):
        x.add_(1)
    assert "a kernel on the default stream" in str(refused.value.__context__)


def test_a_failed_capture_leaves_its_stream_and_before_2_13_its_allocator():
    for before_2_13 in (False, True):
        with plugged_in(torch_before_2_13=before_2_13):
            module, x = devices.of(HERE), zeros(3)
            default = module.current_stream(HERE)
            with pytest.raises(NotPermitted), module.graph(module.CUDAGraph()):
                x.sum().item()
            assert module.current_stream(HERE) is not default
            if before_2_13:
                with pytest.raises(RuntimeError, match="INTERNAL ASSERT"):
                    module.empty_cache()
            else:
                module.empty_cache()


def test_a_pool_ends_with_its_graphs(gpu):
    x = zeros(3)
    first = captured(lambda: x.add_(1))
    pool = first.pool()
    second = captured(lambda: x.add_(2), pool)
    assert second.pool() == pool
    del first, second
    with pytest.raises(NotPermitted, match="gone"):
        captured(lambda: x.add_(1), pool)


# -- streams --------------------------------------------------------------------------------------------------------------


def raced(gpu, waits):
    """Whether two streams that work on one tensor race. waits: between the one and the other."""
    module, x = devices.of(HERE), zeros(3)
    aside = module.Stream(HERE)
    aside.wait_stream(module.current_stream(HERE))
    with module.stream(aside):
        x.add_(1)
    waits(module, aside, x)
    x.add_(1)
    return bool(gpu.seen.races)


@pytest.mark.parametrize(
    "waits",
    [
        lambda module, aside, x: module.current_stream(HERE).wait_stream(aside),
        lambda module, aside, x: module.synchronize(HERE),
    ],
)
def test_streams_that_wait_do_not_race(gpu, waits):
    assert not raced(gpu, waits)


def test_streams_that_do_not_wait_race(gpu):
    assert raced(gpu, lambda *_: None)


def test_memory_that_another_stream_uses_must_not_be_given_away(gpu):
    module, x = devices.of(HERE), zeros(3)
    aside = module.Stream(HERE)
    aside.wait_stream(module.current_stream(HERE))
    with module.stream(aside):
        y = x + 1
    del x
    assert not gpu.seen.races
    zeros(3)
    assert "given back while another stream may still use it" in next(iter(gpu.seen.races))
    assert y.shape == (3,)
