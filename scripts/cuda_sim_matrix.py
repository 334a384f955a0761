#!/usr/bin/env python3
"""Runs Python PyTorch on the simulated CUDA device: every kind of call that libtorch makes into NVIDIA's libraries.

    cuda_sim_matrix.py LIBS [--cc 9.0] [--only TEXT] [--figures]

LIBS is a folder with the built stand-ins (`target/release/build/inspect-checkpoint-*/out/cuda_sim`). Wants a full Python
installation of torch 2.11.0 and torchvision. The script starts itself again with the stand-ins preloaded. A check fails
when it raises; checks that depend on values, which are all zero, are not in it. Exit status: the number of failures.

`--figures` instead compares peaks with recorded ones (compute capability 8.9), to the byte.
"""

import argparse
import os
import pathlib
import sys
import tempfile
import warnings

FIRST = ["libcuda.so", "libcudart.so"]
GIB = 1 << 30


def preloaded(libs):
    """The stand-ins in preload order: driver, runtime, the rest."""
    names = sorted(path.name for path in libs.iterdir() if ".so." in path.name and path.suffix[1:].isdigit())
    names.sort(key=lambda name: next((i for i, first in enumerate(FIRST) if name.startswith(first)), len(FIRST)))
    return ":".join(str(libs / name) for name in names)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("libs", type=pathlib.Path)
    parser.add_argument("--cc", default="9.0", help="compute capability")
    parser.add_argument("--only", default="", help="only checks whose name contains this")
    parser.add_argument("--figures", action="store_true", help="compare peaks instead")
    return parser.parse_args()


def restart(args):
    environment = dict(os.environ)
    environment["LD_PRELOAD"] = preloaded(args.libs.resolve())
    environment["INSPECT_CUDA_SIM_CC"] = "8.9" if args.figures else args.cc
    environment["INSPECT_CUDA_SIM_TOTAL_BYTES"] = str(80 * GIB)
    environment["TRITON_LIBCUDA_PATH"] = str(args.libs.resolve())
    environment["CUDA_SIM_MATRIX"] = "1"
    os.execve(sys.executable, [sys.executable, *sys.argv], environment)


ARGS = arguments()
if "CUDA_SIM_MATRIX" not in os.environ:
    restart(ARGS)

warnings.filterwarnings("ignore")
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import torchvision  # noqa: E402
from torch import nn  # noqa: E402

DEVICE = "cuda"
CHECKS = []


def check(name):
    def add(function):
        CHECKS.append((name, function))
        return function

    return add


def zeros(*shape, grad=False, **options):
    return torch.zeros(*shape, device=DEVICE, requires_grad=grad, **options)


# --- training as it is usually done ---


@check("autocast fp16 with GradScaler")
def _():
    model = torchvision.models.resnet18().cuda()
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler()
    for _ in range(2):
        with torch.autocast("cuda", torch.float16):
            loss = model(zeros(8, 3, 224, 224)).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


@check("channels_last bf16")
def _():
    model = torchvision.models.resnet18().cuda().to(memory_format=torch.channels_last).bfloat16()
    model(zeros(8, 3, 224, 224, dtype=torch.bfloat16).to(memory_format=torch.channels_last)).sum().backward()


@check("optimizers: foreach, fused, single tensor")
def _():
    parameters = [nn.Parameter(zeros(1000, 1000)) for _ in range(4)]
    for optimizer in (
        torch.optim.AdamW(parameters),
        torch.optim.AdamW(parameters, fused=True),
        torch.optim.Adam(parameters, foreach=False),
        torch.optim.SGD(parameters, 0.1, momentum=0.9),
        torch.optim.RMSprop(parameters),
        torch.optim.Adagrad(parameters),
    ):
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()


@check("gradient clipping, checkpointing")
def _():
    from torch.utils.checkpoint import checkpoint

    model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(4)]).cuda()
    checkpoint(model, zeros(64, 512, grad=True), use_reentrant=False).sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)


@check("embedding, dropout, cross entropy")
def _():
    table = nn.Embedding(50000, 512).cuda()
    hidden = F.dropout(table(zeros(8, 128, dtype=torch.long)), 0.1)
    F.cross_entropy(hidden.flatten(0, 1) @ table.weight.t(), zeros(1024, dtype=torch.long)).backward()


# --- attention ---


def attention_check(name, *backends):
    @check(f"attention {name}")
    def _():
        from torch.nn.attention import SDPBackend, sdpa_kernel

        chosen = [getattr(SDPBackend, backend) for backend in backends or SDPBackend.__members__]
        query = zeros(2, 8, 1024, 64, dtype=torch.float16, grad=True)
        with sdpa_kernel([backend for backend in chosen if backend.name not in ("ERROR", "OVERRIDEABLE")]):
            F.scaled_dot_product_attention(query, query, query, is_causal=True).sum().backward()


attention_check("as the device chooses")
for backend in ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH", "CUDNN_ATTENTION"):
    attention_check(backend, backend)


# --- cuDNN ---

RNNS = [("LSTM", {}), ("GRU", {}), ("RNN", {})]
RNNS += [(kind, options) for kind, _ in RNNS for options in ({"bidirectional": True}, {"bias": False}, {"dropout": 0.3})]
RNNS += [("LSTM", {"proj_size": 64}), ("LSTM", {"proj_size": 64, "bidirectional": True})]


def rnn_checks(kind, options):
    @check(f"{kind} {options or ''} training")
    def _():
        model = getattr(nn, kind)(128, 256, 2, **options).cuda()
        flat = model.weight_ih_l0.untyped_storage().nbytes()
        numel = sum(parameter.numel() for parameter in model.parameters())
        # PyTorch asks cuDNN for biases whether the module has them or not.
        missing = 0 if options.get("bias", True) else 2 * model.num_layers * model.weight_ih_l0.shape[0]
        assert flat == 4 * (numel + missing), (flat, numel)
        model(zeros(20, 4, 128))[0].sum().backward()

    @check(f"{kind} {options or ''} inference, half, packed")
    def _():
        model = getattr(nn, kind)(128, 256, 2, **options).cuda().half().eval()
        with torch.no_grad():
            model(nn.utils.rnn.pack_padded_sequence(zeros(20, 4, 128, dtype=torch.half), [20, 10, 5, 1]))


for rnn_kind, rnn_options in RNNS:
    rnn_checks(rnn_kind, rnn_options)


@check("LSTM without cuDNN")
def _():
    with torch.backends.cudnn.flags(enabled=False):
        nn.LSTM(128, 256, 2).cuda()(zeros(20, 4, 128))[0].sum().backward()


@check("convolutions: 1d, 2d, 3d, grouped, transposed, dilated, benchmark")
def _():
    cases = [
        (nn.Conv1d(8, 16, 3), (2, 8, 32)),
        (nn.Conv2d(8, 16, 3, groups=4), (2, 8, 32, 32)),
        (nn.Conv2d(8, 8, 3, groups=8), (2, 8, 32, 32)),
        (nn.Conv2d(8, 8, 3, dilation=2), (2, 8, 32, 32)),
        (nn.Conv3d(8, 16, 3), (2, 8, 8, 8, 8)),
        (nn.ConvTranspose2d(8, 16, 3, stride=2), (2, 8, 16, 16)),
    ]
    for benchmark in (False, True):
        with torch.backends.cudnn.flags(enabled=True, benchmark=benchmark):
            for module, shape in cases:
                module.cuda()(zeros(*shape, grad=True)).sum().backward()


@check("fused convolution, bias and relu")
def _():
    torch.cudnn_convolution_relu(zeros(2, 8, 16, 16), zeros(8, 8, 3, 3), zeros(8), (1, 1), (1, 1), (1, 1), 1)


@check("normalization: batch, instance, group, layer; training and inference")
def _():
    cases = [
        (nn.BatchNorm1d(8), (4, 8)),
        (nn.BatchNorm2d(8), (4, 8, 16, 16)),
        (nn.BatchNorm3d(8), (4, 8, 4, 4, 4)),
        (nn.InstanceNorm2d(8), (4, 8, 16, 16)),
        (nn.GroupNorm(2, 8), (4, 8, 16, 16)),
        (nn.LayerNorm(16), (4, 8, 16, 16)),
    ]
    for module, shape in cases:
        module.cuda()(zeros(*shape, grad=True)).sum().backward()
        module.eval()(zeros(*shape))


@check("CTC loss, cuDNN's and PyTorch's")
def _():
    log_probabilities = zeros(50, 4, 20, grad=True).log_softmax(2)
    for place in ("cpu", DEVICE):
        lengths = [torch.full((4,), n, dtype=torch.int32, device=place) for n in (50, 10)]
        labels = torch.ones(4, 10, dtype=torch.int32, device=place)
        F.ctc_loss(log_probabilities, labels, *lengths).backward(retain_graph=True)


@check("grid sampling")
def _():
    grid = F.affine_grid(zeros(2, 2, 3, grad=True), (2, 3, 16, 16))
    F.grid_sample(zeros(2, 3, 16, 16, grad=True), grid).sum().backward()


# --- FFT, dense and sparse linear algebra ---


@check("fft, rfft, stft, and their gradients")
def _():
    signal = zeros(8, 1024, grad=True)
    torch.fft.irfft(torch.fft.rfft(signal)).sum().backward()
    torch.fft.ifft(torch.fft.fft(signal)).abs().sum().backward()
    torch.fft.rfftn(zeros(4, 16, 16, 16))
    torch.stft(signal, 256, return_complex=True, window=torch.ones(256, device=DEVICE))


LINALG = {
    "inv": torch.linalg.inv,
    "cholesky": torch.linalg.cholesky,
    "solve": lambda a: torch.linalg.solve(a, a),
    "svd": torch.linalg.svd,
    "eigh": torch.linalg.eigh,
    "eigvalsh": torch.linalg.eigvalsh,
    "qr": torch.linalg.qr,
    "lu": torch.linalg.lu,
    "ldl": torch.linalg.ldl_factor,
    "det": torch.linalg.det,
    "slogdet": torch.linalg.slogdet,
    "lstsq": lambda a: torch.linalg.lstsq(a, a),
    "solve_triangular": lambda a: torch.linalg.solve_triangular(a, a, upper=True),
    "cholesky_solve": lambda a: torch.cholesky_solve(a, a),
    "pinv": torch.linalg.pinv,
    "householder_product": lambda a: torch.linalg.householder_product(a, a[..., 0, :]),
}


def linalg_check(name, function):
    @check(f"linalg {name}")
    def _():
        for dtype in (torch.float32, torch.float64, torch.complex64):
            for shape in ((64, 64), (4, 16, 16), (300, 300)):
                function(zeros(*shape, dtype=dtype))


for linalg_name, linalg_function in LINALG.items():
    linalg_check(linalg_name, linalg_function)


@check("svd drivers")
def _():
    for driver in ("gesvd", "gesvdj", "gesvda"):
        torch.linalg.svd(zeros(4, 32, 16), driver=driver)


@check("sparse: coo, csr, sddmm, spgemm, triangular solve, 2:4")
def _():
    torch.sparse.mm(torch.eye(64, device=DEVICE).to_sparse().requires_grad_(), zeros(64, 8)).sum().backward()
    matrix, dense = torch.eye(64, device=DEVICE).to_sparse_csr(), zeros(64, 64)
    for result in (matrix @ dense, matrix @ dense[:, 0], matrix @ matrix, matrix + matrix):
        assert result.device.type == "cuda"
    torch.sparse.sampled_addmm(matrix, dense, dense)
    torch.triangular_solve(dense, matrix)
    half = zeros(128, 128, dtype=torch.float16)
    torch._cslt_sparse_mm(torch._cslt_compress(half), half)


# --- the rest of the runtime ---


@check("sort, topk, cumsum, unique, nonzero, random numbers")
def _():
    values = zeros(100000)
    values.sort(), values.topk(5), values.cumsum(0), values.unique(), values.nonzero()
    torch.randn(10, device=DEVICE), torch.randperm(100000, device=DEVICE)
    torch.multinomial(torch.ones(10, device=DEVICE), 3)


@check("int8 and fp8 products")
def _():
    a, one = zeros(64, 64).to(torch.float8_e4m3fn), torch.ones((), device=DEVICE)
    if torch.cuda.get_device_capability() >= (8, 9):
        torch._scaled_mm(a, a.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    torch._int_mm(zeros(64, 64, dtype=torch.int8), zeros(64, 64, dtype=torch.int8))


@check("pinned memory")
def _():
    pinned = torch.zeros(1000).pin_memory()
    assert pinned.is_pinned() and not torch.zeros(3).is_pinned()
    pinned.to(DEVICE, non_blocking=True)


@check("streams, record_stream, events")
def _():
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        block = zeros(1000000)
    block.record_stream(torch.cuda.current_stream())
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record(), end.record(), end.synchronize()
    assert end.query() and start.elapsed_time(end) >= 0


@check("graph capture with a side stream")
def _():
    x, side, graph = zeros(512, 512), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    x @ x
    with torch.cuda.graph(graph):
        y = x @ x
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            z = x + 1
        torch.cuda.current_stream().wait_stream(side)
        y + z
    graph.replay()


@check("graphed callables")
def _():
    model, x = nn.Sequential(nn.Linear(64, 64), nn.ReLU()).cuda(), zeros(8, 64, grad=True)
    torch.cuda.make_graphed_callables(model, (x,))(x).sum().backward()


@check("kernels compiled at run time: jiterator, triton")
def _():
    torch.cuda.jiterator._create_jit_fn("template <typename T> T f(T x) { return x + 1; }")(zeros(10))
    torch.compile(lambda x: (x * 2).relu())(zeros(1000))


@check("snapshot, profiler")
def _():
    torch.cuda.memory._record_memory_history()
    zeros(10)
    assert torch.cuda.memory._snapshot()["segments"]
    torch.cuda.memory._record_memory_history(enabled=None)
    with torch.profiler.profile() as profile:
        zeros(10) + 1
    assert profile.key_averages()


@check("torchvision kernels")
def _():
    torchvision.ops.nms(zeros(10, 4), zeros(10), 0.5)
    torchvision.ops.roi_align(zeros(1, 3, 16, 16), [zeros(2, 4)], 7)


@check("NCCL, one rank")
def _():
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, 1, True)
    dist.init_process_group("nccl", store=store, rank=0, world_size=1)
    dist.all_reduce(torch.ones(1000, device=DEVICE))
    dist.destroy_process_group()


@check("out of memory, retry, memory info")
def _():
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    assert total - free == torch.cuda.memory_reserved()
    try:
        torch.empty(200 * GIB, device=DEVICE, dtype=torch.uint8)
        raise AssertionError("200 GiB fitted")
    except torch.cuda.OutOfMemoryError:
        pass
    block = torch.empty(int(free * 0.6), dtype=torch.uint8, device=DEVICE)
    del block
    torch.empty(int(free * 0.7), dtype=torch.uint8, device=DEVICE)
    assert torch.cuda.memory_stats()["num_ooms"] == 1


def run_checks():
    failures = 0
    for name, function in CHECKS:
        if ARGS.only not in name:
            continue
        torch.cuda.reset_peak_memory_stats()
        try:
            function()
            torch.cuda.synchronize()
            print(f"ok    {name}: peak allocated {torch.cuda.max_memory_allocated() / 2**20:.1f} MiB", flush=True)
        except Exception as error:  # noqa: BLE001 - every failure is reported
            failures += 1
            print(f"FAIL  {name}: {type(error).__name__}: {str(error).splitlines()[0][:150]}", flush=True)
    return failures


# --- figures ---

# Model, batch, what is done, peak allocated and peak reserved in bytes: compute capability 8.9, no convolution workspace,
# TorchScript without fusion, mean as the loss, two steps.
FIGURES = [
    ("resnet18", 1, "inference", 57_037_824, 71_303_168),
    ("resnet18", 8, "inference", 103_058_432, 125_829_120),
    ("resnet18", 8, "sgd", 276_528_640, 371_195_904),
    ("resnet18", 8, "adamw", 373_884_416, 448_790_528),
    ("vgg16", 8, "adamw", 2_797_484_544, 3_338_665_984),
]


def measure(path, batch, mode):
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    model, x = torch.jit.load(path, map_location="cpu").cuda(), zeros(batch, 3, 224, 224)
    if mode == "inference":
        with torch.no_grad():
            model.eval()(x)
    else:
        optimizers = {"sgd": lambda p: torch.optim.SGD(p, 0.01), "adamw": torch.optim.AdamW}
        optimizer = optimizers[mode](model.train().parameters())
        for _ in range(2):
            optimizer.zero_grad()
            y = model(x)  # kept into the next step, as a training loop does
            y.mean().backward()
            optimizer.step()
    return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()


def in_fresh_process(path, batch, mode):
    """Peaks depend on what ran before (handles, workspaces, cached blocks): each figure has a process of its own."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, repr(measure(path, batch, mode)).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return tuple(int(number) for number in text.strip("()").split(",")) if text else None


def compare_figures():
    torch._C._jit_set_profiling_executor(False)
    torch._C._jit_set_profiling_mode(False)
    torch._C._set_graph_executor_optimize(False)
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, batch, mode, *expected in FIGURES:
            path = f"{folder}/{name}.pt"
            if not os.path.exists(path):
                torch.jit.script(getattr(torchvision.models, name)().eval()).save(path)
            found = in_fresh_process(path, batch, mode)
            same = found == tuple(expected)
            failures += not same
            print(f"{'ok   ' if same else 'FAIL '} {name} batch {batch} {mode}: {found}, expected {tuple(expected)}")
    return failures


if __name__ == "__main__":
    sys.exit(compare_figures() if ARGS.figures else run_checks())
