#!/usr/bin/env python3
"""Tests of softcuda_torch: what the operators give on a `cuda` tensor is what they give on the CPU.

    LD_LIBRARY_PATH=...softcuda python test_softcuda_torch.py
"""
import os
import subprocess
import sys
import tempfile
import textwrap
import unittest

import torch
import torch.nn.functional as F

import softcuda_torch

DEVICE = torch.device("cuda:0")
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def setUpModule():
    softcuda_torch.install()


class Case(unittest.TestCase):
    def same(self, got, want):
        """Equal bit for bit, on the device, of the same type and shape."""
        self.assertEqual(got.device.type, "cuda")
        self.assertEqual((got.dtype, got.shape), (want.dtype, want.shape))
        self.assertTrue(torch.equal(got.cpu(), want), f"{got.cpu()} is not {want}")

    def agree(self, function, *tensors):
        """A function of tensors gives on the device what it gives on the CPU."""
        wanted, got = function(*tensors), function(*[tensor.to(DEVICE) for tensor in tensors])
        for one, other in zip(*[values if isinstance(values, (tuple, list)) else [values] for values in (got, wanted)]):
            self.same(one, other)


def numbers(*shape, dtype=torch.float32, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


class Operators(Case):
    def test_arithmetic(self):
        for dtype in FLOATS:
            a, b = numbers(5, 7, dtype=dtype), numbers(7, dtype=dtype, seed=2)
            for function in (torch.add, torch.mul, torch.sub, torch.div, torch.maximum, torch.atan2):
                self.agree(function, a, b)
            for function in (torch.exp, torch.sigmoid, torch.neg, torch.abs, torch.sum, torch.mean, torch.argmax):
                self.agree(function, a)

    def test_several_results(self):
        a = numbers(6, 9)
        for function in (
            torch.sort,
            lambda x: torch.topk(x, 3),
            lambda x: x.max(1),
            torch.unique,
            lambda x: torch.linalg.svd(x),
        ):
            self.agree(function, a)

    def test_linear_algebra(self):
        for dtype in FLOATS:
            a, b = numbers(4, 5, dtype=dtype), numbers(5, 6, dtype=dtype)
            self.agree(torch.matmul, a, b)
            self.agree(lambda x, y: torch.einsum("ij,jk->ki", x, y), a, b)

    def test_comparison_and_control(self):
        a = numbers(20)
        self.agree(lambda x: x[x > 0], a)
        self.agree(lambda x: torch.where(x > 0, x, -x), a)
        self.agree(torch.nonzero, a)
        self.assertTrue(torch.equal(a.to(DEVICE), a.to(DEVICE)))
        self.assertAlmostEqual(a.to(DEVICE).sum().item(), a.sum().item())
        self.assertIn("device='cuda:0'", repr(a.to(DEVICE)))

    def test_factories(self):
        for make in (torch.ones, torch.zeros, torch.empty):
            self.assertEqual(make(3, 2, device=DEVICE).shape, (3, 2))
        self.same(torch.ones(3, device=DEVICE), torch.ones(3))
        self.same(torch.full((2, 2), 7, device=DEVICE), torch.full((2, 2), 7))
        self.same(torch.arange(1, 9, 3, device=DEVICE), torch.arange(1, 9, 3))
        self.same(torch.linspace(0, 1, 5, device=DEVICE), torch.linspace(0, 1, 5))
        self.same(torch.eye(3, device=DEVICE), torch.eye(3))
        self.same(torch.tril_indices(3, 3, device=DEVICE), torch.tril_indices(3, 3))
        self.assertEqual(torch.ones(1, device="cuda:1").device, torch.device("cuda:1"))
        with torch.cuda.device(2):
            self.assertEqual(torch.ones(1, device="cuda").device, torch.device("cuda:2"))

    def test_types(self):
        a = numbers(4, 3) * 10
        for source in FLOATS + [torch.int32, torch.int64, torch.uint8, torch.bool]:
            for target in FLOATS + [torch.int16, torch.int64, torch.bool, torch.float8_e4m3fn]:
                got, want = a.abs().to(source).to(DEVICE).to(target), a.abs().to(source).to(target)
                self.assertEqual(got.dtype, target)
                self.assertTrue(torch.equal(got.cpu().float(), want.float()))

    def test_complex(self):
        a = torch.complex(numbers(3, 3), numbers(3, 3, seed=2))
        self.agree(lambda x: x @ x.conj().t(), a)
        self.agree(lambda x: (x.conj() * 2).clone(), a)
        self.agree(lambda x: x.imag.neg() + x.conj().imag, a)
        self.agree(torch.abs, a)


class Memory(Case):
    def test_in_place(self):
        a = numbers(4, 4)
        b = a.to(DEVICE)
        same = b.add_(1).mul_(2).clamp_(min=0)
        self.assertIs(same, b)
        self.same(b, a.add(1).mul(2).clamp(min=0))
        self.assertEqual(b._version, 3)

    def test_views(self):
        a = numbers(6, 4)
        b = a.to(DEVICE)
        b.t()[1].add_(5)
        b[2:4, ::2] = 9
        b.view(-1)[3] = 1
        b.diagonal().zero_()
        wanted = a.clone()
        wanted[:, 1] += 5
        wanted[2:4, ::2] = 9
        wanted.view(-1)[3] = 1
        wanted.diagonal().zero_()
        self.same(b, wanted)
        self.assertEqual(b.t().data_ptr(), b.data_ptr())
        self.agree(lambda x: x.t().contiguous(), a)
        self.agree(lambda x: x.expand(2, 6, 4).sum(0), a)

    def test_out(self):
        a = numbers(5).to(DEVICE)
        out = torch.empty(0, device=DEVICE)
        self.assertIs(torch.add(a, 1, out=out), out)
        self.same(out, a.cpu() + 1)
        out = torch.empty(5, device=DEVICE)
        torch.mul(a, 2, out=out)
        self.same(out, a.cpu() * 2)
        out = torch.empty(5, dtype=torch.float64, device=DEVICE)
        torch.cumsum(a, 0, dtype=torch.float64, out=out)
        self.same(out, torch.cumsum(a.cpu(), 0, dtype=torch.float64))

    def test_empty_tensors(self):
        a = torch.empty(0, 3, device=DEVICE)
        self.assertEqual((a + 1).shape, (0, 3))
        self.assertEqual(a.sum().item(), 0)
        self.assertEqual(torch.cat([a, torch.ones(2, 3, device=DEVICE)]).shape, (2, 3))

    def test_memory_formats(self):
        a = numbers(2, 3, 4, 5).to(DEVICE, memory_format=torch.channels_last)
        self.assertTrue((a * 2).is_contiguous(memory_format=torch.channels_last))
        self.same(a * 2, numbers(2, 3, 4, 5) * 2)

    def test_copies(self):
        a = numbers(4, 6)
        for target in ("cuda:0", "cuda:1"):
            b = torch.empty(6, 4, dtype=torch.float64, device=target)
            b.t().copy_(a.to(DEVICE))
            self.assertTrue(torch.equal(b.cpu(), a.t().double()))
        host = torch.empty(6, 4)
        host.copy_(a.to(DEVICE).t())
        self.assertTrue(torch.equal(host, a.t()))


class Streams(Case):
    def test_an_operator_waits_for_its_stream(self):
        # Copies between pinned memory and the device are asynchronous: an operator must see what they bring.
        source = torch.arange(1 << 20, dtype=torch.float32).pin_memory()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            x = torch.zeros(1 << 20, device=DEVICE)
            for turn in range(5):
                x.copy_(source, non_blocking=True)
                y = x + turn
                x.zero_()
                self.assertTrue(torch.equal(y.cpu(), source + turn))

    def test_a_waiting_stream_sees_it(self):
        first, second = torch.cuda.Stream(), torch.cuda.Stream()
        with torch.cuda.stream(first):
            x = torch.ones(1000, device=DEVICE)
            x.mul_(3)
        second.wait_stream(first)
        with torch.cuda.stream(second):
            y = x.clone()
            y += x
        self.assertTrue(torch.equal(y.cpu(), torch.full((1000,), 6.0)))


class Gradients(Case):
    def test_network(self):
        def grads(device):
            torch.manual_seed(3)
            net = torch.nn.Sequential(
                torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.GELU(), torch.nn.Flatten(),
                torch.nn.LayerNorm(144), torch.nn.Linear(144, 3),
            ).to(device)  # fmt: skip
            x = numbers(5, 1, 8, 8).to(device).requires_grad_()
            F.cross_entropy(net(x), torch.tensor([0, 1, 2, 1, 0]).to(device)).backward()
            return [x.grad] + [p.grad for p in net.parameters()]

        for got, want in zip(grads(DEVICE), grads("cpu")):
            self.assertEqual(got.device, DEVICE)
            torch.testing.assert_close(got.cpu(), want)

    def test_attention(self):
        def run(device):
            torch.manual_seed(3)
            layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True).to(device)
            out = layer(numbers(3, 4, 16).to(device))
            out.square().sum().backward()
            return [out] + [p.grad for p in layer.parameters()]

        for got, want in zip(run(DEVICE), run("cpu")):
            torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-4)

    def test_recurrent_layers(self):
        for kind in (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN):
            for bias in (True, False):

                def run(device):
                    torch.manual_seed(3)
                    layer = kind(4, 6, num_layers=2, bias=bias).to(device)
                    x = numbers(5, 3, 4).to(device).requires_grad_()
                    out, state = layer(x)
                    (
                        out.square().sum() + sum(s.sum() for s in (state if isinstance(state, tuple) else [state]))
                    ).backward()
                    return [out, x.grad] + [p.grad for p in layer.parameters()]

                for got, want in zip(run(DEVICE), run("cpu")):
                    torch.testing.assert_close(got.cpu(), want)

    def test_optimizers(self):
        for make in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop):
            for options in ({}, {"foreach": True}, {"fused": True}):
                if options.get("fused") and make is torch.optim.RMSprop:
                    continue  # it has no such form

                def run(device):
                    p = torch.nn.Parameter(numbers(9).to(device))
                    optimizer = make([p], lr=0.1, **options)
                    for _ in range(3):
                        optimizer.zero_grad()
                        (p**2).sum().backward()
                        optimizer.step()
                    return p.detach().cpu()

                torch.testing.assert_close(run(DEVICE), run("cpu"))

    def test_mixed_precision(self):
        layer = torch.nn.Linear(4, 4).to(DEVICE)
        scaler = torch.amp.GradScaler("cuda", init_scale=8.0)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        before = layer.weight.detach().clone()
        with torch.autocast("cuda", dtype=torch.float16):
            out = layer(numbers(2, 4).to(DEVICE))
            loss = F.log_softmax(out, 1, dtype=torch.float32).sum()
        self.assertEqual((out.dtype, loss.dtype), (torch.float16, torch.float32))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        self.assertFalse(torch.equal(layer.weight, before))
        (loss * float("inf")).isnan()

    def test_inference_mode(self):
        with torch.inference_mode():
            x = torch.ones(3, device=DEVICE)
            x += 1
        self.assertEqual(x.cpu().tolist(), [2.0] * 3)


class Randomness(Case):
    def test_seeds(self):
        draws = []
        for _ in range(2):
            torch.manual_seed(5)
            torch.cuda.manual_seed(6)
            draws.append(
                [torch.randn(4, device=DEVICE), torch.rand(4, device=DEVICE), F.dropout(torch.ones(64, device=DEVICE))]
            )
        for one, other in zip(*draws):
            self.same(one, other.cpu())
        torch.cuda.manual_seed(7)
        self.assertFalse(torch.equal(torch.randn(4, device=DEVICE), draws[0][0]))

    def test_states(self):
        state = torch.cuda.get_rng_state()
        first = torch.randperm(100, device=DEVICE)
        self.assertFalse(torch.equal(torch.randperm(100, device=DEVICE), first))
        torch.cuda.set_rng_state(state)
        self.same(torch.randperm(100, device=DEVICE), first.cpu())

    def test_own_generator(self):
        draws = [torch.randn(5, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(9)) for _ in range(2)]
        self.same(draws[0], draws[1].cpu())

    def test_cpu_generator_is_left_alone(self):
        torch.manual_seed(5)
        wanted = torch.randn(3)
        torch.manual_seed(5)
        F.dropout(torch.ones(64, device=DEVICE))
        torch.randn(8, device=DEVICE)
        self.assertTrue(torch.equal(torch.randn(3), wanted))


class Refusals(Case):
    def test_two_devices(self):
        with self.assertRaisesRegex(RuntimeError, "same device.*cuda:0, cuda:1"):
            torch.ones(2, device="cuda:0") + torch.ones(2, device="cuda:1")
        with self.assertRaisesRegex(RuntimeError, "same device.*cpu, cuda:0"):
            torch.ones(2, device="cuda:0") + torch.ones(2)
        self.same(torch.ones(2, device=DEVICE) + torch.tensor(1.0), torch.full((2,), 2.0))

    def test_capture(self):
        x = torch.ones(4, device=DEVICE)
        graph = torch.cuda.CUDAGraph()
        with self.assertRaisesRegex(RuntimeError, "aten::add.Tensor cannot be captured"):
            with torch.cuda.graph(graph):
                x + 1
        y = torch.zeros(4, device=DEVICE)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y.copy_(x)
        x.fill_(7)
        graph.replay()
        self.assertEqual(y.cpu().tolist(), [7.0] * 4)

    def test_gpu_only(self):
        with self.assertRaisesRegex(NotImplementedError, "_fused_dropout exists for GPUs only"):
            torch.ops.aten._fused_dropout(torch.ones(4, device=DEVICE), 0.5)

    def test_errors_are_pytorchs(self):
        with self.assertRaisesRegex(RuntimeError, "size of tensor"):
            torch.ones(3, device=DEVICE) + torch.ones(4, device=DEVICE)

    def test_uninstall(self):
        code = """
            import torch, softcuda_torch
            softcuda_torch.install(); softcuda_torch.install()
            assert torch.ones(2, device="cuda").sum().item() == 2 and softcuda_torch.installed()
            softcuda_torch.uninstall()
            assert not softcuda_torch.installed() and torch.backends.cudnn.enabled
            try:
                torch.ones(2, device="cuda")
            except RuntimeError as error:
                assert "invalid device function" in str(error)
            else:
                raise AssertionError("PyTorch's own kernels are back, and cannot run")
        """
        subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            check=True,
            cwd=os.path.dirname(os.path.abspath(__file__)),
            timeout=120,
        )

    def test_program_as_it_is(self):
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "program.py")
            with open(program, "w") as file:
                file.write(
                    "import sys, torch\n"
                    "print(__name__, sys.argv[1:], (torch.ones(2, device='cuda') + 1).sum().item())\n"
                )
            here = os.path.dirname(os.path.abspath(__file__))
            command = [sys.executable, "-m", "softcuda_torch", program, "a"]
            output = subprocess.run(command, check=True, cwd=here, timeout=120, capture_output=True, text=True).stdout
        self.assertEqual(output, "__main__ ['a'] 4.0\n")


if __name__ == "__main__":
    result = unittest.main(exit=False, verbosity=1).result
    failed = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - failed} passed, {failed} failed", flush=True)
    sys.exit(failed > 0)
