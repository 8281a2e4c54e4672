"""Parts of an ejected file's test and benchmark that are the same in every one."""

from __future__ import annotations

INTERPRETER = '''
#: Whether Triton runs kernels in its interpreter: TRITON_INTERPRET=1 was set before it was imported.
INTERPRETED = not isinstance(tl.cdiv, triton.JITFunction)


@contextmanager
def _rounding_casts() -> Iterator[None]:
    """Lets the interpreter's casts between floats round as GPUs do; by itself it cuts off bits."""
    if not INTERPRETED:
        yield
        return
    import numpy as np
    from triton.runtime import interpreter

    floats = {
        "fp32": torch.float32,
        "fp16": torch.float16,
        "bf16": torch.bfloat16,
        "fp8e4nv": torch.float8_e4m3fn,
    }
    original = interpreter._convert_float

    def convert(values: object, source: tl.dtype, target: tl.dtype, mode: object) -> object:
        if source.name not in floats or target.name not in floats:
            return original(values, source, target, mode)
        dtype, integers = floats[target.name], {1: torch.uint8, 2: torch.int16, 4: torch.int32}
        found = torch.from_numpy(np.ascontiguousarray(values))
        found = found if found.dtype == floats[source.name] else found.view(floats[source.name])
        if dtype == torch.float8_e4m3fn:  # a GPU's conversion ends at the largest number
            wide = found.float()
            found = torch.where(wide.isnan(), wide, wide.clamp(-448, 448))
        bits = found.to(dtype).view(integers[dtype.itemsize]).numpy()
        return bits.view(f"uint{8 * dtype.itemsize}").reshape(values.shape)

    interpreter._convert_float = convert
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        interpreter._convert_float = original
'''

FLOAT64 = '''
class _Float64(TorchFunctionMode):
    """Keeps floats in float64: no cast and no new tensor is narrower, so nothing is rounded."""
{bits}
    def __torch_function__(
        self,
        func: Callable,
        types: object,
        args: tuple = (),
        kwargs: dict | None = None,
    ) -> object:
{view}        widened = {{name: self._wide(value) for name, value in (kwargs or {{}}).items()}}
        return func(*map(self._wide, args), **widened)

    @staticmethod
    def _wide(value: object) -> object:
        is_float = isinstance(value, torch.dtype) and value.is_floating_point
        return torch.float64 if is_float else value


def _in_float64(function: Callable, arguments: dict) -> tuple[torch.Tensor, ...]:
    """What ``function`` gives without rounding."""
    wide = {{k: v.double() if v.is_floating_point() else v for k, v in arguments.items()}}
    with _Float64():
        return _tuple(function(**wide))
'''

#: Where bits of floats are read, in a file that does it.
VIEW_BITS = """        if func is torch.Tensor.view and isinstance(args[1], torch.dtype):
            x, seen = args
            bits = (x.to(self._BITS[seen]) if x.dtype == torch.float64 else x).view(seen)
            return bits.double() if bits.is_floating_point() else bits
"""

CONTRACT = '''
def _tuple(found: object) -> tuple[torch.Tensor, ...]:
    return found if isinstance(found, tuple) else () if found is None else (found,)


def _bytes(x: torch.Tensor) -> torch.Tensor:
    return x.flatten().clone(memory_format=torch.contiguous_format).view(torch.uint8)


def _unit_in_last_place(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The distance between neighbouring numbers of ``dtype`` as large as ``x``."""
    if not dtype.is_floating_point:
        return torch.ones_like(x)
    info = torch.finfo(dtype)
    exponent = torch.frexp(x.abs().clamp_min(info.tiny)).exponent - 1
    return torch.ldexp(torch.full_like(x, info.eps), exponent)


def _never_worse(name: str, found: torch.Tensor, own: torch.Tensor, exact: torch.Tensor) -> None:
    """The kernel is at most as wrong as torch, and one unit in the last place."""
    assert found.shape == own.shape and found.dtype == own.dtype, name
    dtype, found, own, exact = found.dtype, found.double(), own.double(), exact.double()
    finite = torch.isfinite(exact) & torch.isfinite(own)
    assert torch.equal(found[~finite].nan_to_num(), own[~finite].nan_to_num()), name
    assert torch.isfinite(found[finite]).all(), f"{name} has values that are not finite"
    if finite.any():
        errors = (found - exact).abs()[finite] - _unit_in_last_place(exact[finite], dtype)
        allowed = (own - exact).abs()[finite].max()
        assert errors.max() <= allowed, f"{name}: {errors.max()} over one unit, allowed {allowed}"
'''

MARKED = '''
def _every_bit(rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Rows of ``dtype`` with every bit set."""
    count = rows.numel() * dtype.itemsize
    bits = torch.full((count,), 255, dtype=torch.uint8, device=rows.device)
    return bits.view(dtype).reshape(rows.shape)
'''

DEVICE = '''
def _device() -> str:
    """Where the tests run: in the interpreter on the CPU, else on a GPU."""
    if INTERPRETED:
        return "cpu"
    if not torch.cuda.is_available():
        import pytest

        pytest.skip("needs a GPU, or TRITON_INTERPRET=1 for Triton's interpreter")
    return "cuda"
'''

TEST = '''
def test_never_worse_than_torch() -> None:
    """Each result against a float64 run: at most as wrong as torch, and one unit in the last place."""
    device = _device()
    for seed{sizes} in {draws}:
        with _rounding_casts():
            found = _tuple(_weld(**draw(seed, device{given})))
        own = _tuple(reference(**draw(seed, device{given})))
        exact = _in_float64(reference, draw(seed, device{given}))
        for result in zip(_RESULTS, found, own, exact, strict=True):
            _never_worse(*result)
'''

TEST_CACHES = '''
def test_never_worse_than_torch() -> None:
    """Results and written rows against a float64 run: at most as wrong as torch, and one unit in the last
    place. Whatever is not written keeps its bits.
    """
    device = _device()
    for seed{sizes} in {draws}:
        found, own, exact = (draw(seed, device{given}) for _ in range(3))
        with _rounding_casts():
            results = _tuple(_weld(**found))
        own_results = _tuple(reference(**own))
        computed_exactly = _in_float64(computed, exact)
        for result in zip(_RESULTS, results, own_results, computed_exactly, strict=False):
            _never_worse(*result)
        rest = computed_exactly[{count}:]
{writes}
'''

TEST_INPUTS = '''
def test_arguments_stay_as_they_are() -> None:
    """What is only read keeps its bits."""
    device = _device()
    given, kept = draw(0, device), draw(0, device)
    with _rounding_casts():
        _weld(**given)
    for argument in _READ:
        assert torch.equal(_bytes(given[argument]), _bytes(kept[argument])), argument
'''

TEST_EXACT = '''
def test_codes_are_equal_where_scales_are() -> None:
    """Nothing is summed here: with the scales of torch the codes are those of torch, bit by bit."""
    device = _device()
    for seed{sizes} in {draws}:
        with _rounding_casts():
            found = _tuple(_weld(**draw(seed, device{given})))
        own = _tuple(reference(**draw(seed, device{given})))
        scales, codes = {scales}, {codes}
        if all(torch.equal(_bytes(found[i]), _bytes(own[i])) for i in scales):
            for i in codes:
                assert torch.equal(_bytes(found[i]), _bytes(own[i])), _RESULTS[i]
'''

TEST_BAD = '''
def test_bad_arguments_are_refused() -> None:
    """By name, before anything is launched."""
    import pytest

    device = _device()
    for argument in draw(0, device):
        for bad in (lambda x: x[None], lambda x: x.to(torch.complex64)):
            arguments = draw(0, device)
            arguments[argument] = bad(arguments[argument])
            with pytest.raises(ValueError, match=argument):
                _weld(**arguments)
'''

BENCHMARK = '''
def benchmark() -> None:
    """Prints the time of the kernel, of torch, and of torch.compile, in a CUDA graph."""
    if INTERPRETED or not torch.cuda.is_available():
        print("benchmark: needs a GPU, without TRITON_INTERPRET", file=sys.stderr)
        sys.exit(2)
{sizes}    arguments = draw(0, "cuda"{given})
{read}    moved = {moved}
    print(f"{{moved}} bytes")
    for label, function in (
        ("kernel", _weld),
        ("torch", reference),
        ("torch.compile", torch.compile(reference)),
    ):
        function(**arguments)
        milliseconds = triton.testing.do_bench_cudagraph(lambda f=function: f(**arguments))
        print(f"{{label:14}} {{1000 * milliseconds:9.2f}} us {{moved / milliseconds / 1e6:9.1f}} GB/s")


if __name__ == "__main__":
    benchmark()
'''
