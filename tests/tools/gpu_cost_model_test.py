#!/usr/bin/env python3
"""tools/gpu/cost_model.py: the measured steps, what operations cost as shapes change, and that docs/device.md is in step."""

import contextlib
import dataclasses
import io
import subprocess
import sys
import unittest
import unittest.mock
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools/gpu/cost_model.py"
sys.path.insert(0, str(TOOL.parent))
sys.dont_write_bytecode = True
import cost_model  # noqa: E402
import cost_operations as cost  # noqa: E402


def flops(operations, kind="matmul"):
    return sum(operation.flops for operation in operations if operation.kind == kind)


def all_operations(run):
    return [operation for phases in run.segments for operations in phases for operation in operations]


class Program(unittest.TestCase):
    """The program's functions in this process, which keeps what was fitted."""

    def said(self, *arguments):
        said = io.StringIO()
        with unittest.mock.patch("sys.argv", ["cost_model.py", *map(str, arguments)]), contextlib.redirect_stdout(said):
            self.assertEqual(cost_model.main(), 0, said.getvalue())
        return said.getvalue()


class Fit(Program):
    def test_measured_steps_are_within_a_tenth(self):
        for rows, length, overlap, measured_ms, *_ in cost_model.MEASURED:
            step_s = cost_model.predict(cost_model.measured_run(rows, length, overlap), cost_model.fit()).step_s
            self.assertAlmostEqual(1e3 * step_s / measured_ms, 1, delta=0.1)

    def test_no_fitted_constant_is_at_a_limit(self):
        for *_, name, least, most in cost_model.MEASURED:
            self.assertTrue(1.05 * least < getattr(cost_model.fit(), name) < 0.95 * most, name)

    def test_steps_that_nothing_is_fitted_to_are_within_a_fifth(self):
        for element, measured_ms in cost_model.HELD_OUT:
            run = cost_model.Run(cost_model.small_model(), cost.Batch(8, 256, element), placement="gpu", tree=cost.RECORDED,
                                 speculates=False)
            self.assertAlmostEqual(1e3 * cost_model.predict(run, cost_model.fit()).step_s / measured_ms, 1, delta=0.2)

    def test_fit_is_printed(self):
        said = self.said("--fit")
        for *_, measured_ms, name, _, _ in cost_model.MEASURED:
            self.assertRegex(said, rf"(?m)^{name} +\S+ +fitted$")
            self.assertRegex(said, rf"\| {measured_ms:g} \| [\d.]+ \| [+-][\d.]+ % \|")


class Operations(unittest.TestCase):
    def setUp(self):
        self.model = cost_model.config("qwen3_4b")
        self.batch = cost.Batch(4, 1024, 2)

    def test_parameters_are_the_public_ones(self):
        for name, billions in (("qwen3_0.6b", 0.596), ("qwen3_4b", 4.022), ("llama31_8b", 8.030), ("qwen3_14b", 14.768)):
            self.assertAlmostEqual(cost_model.config(name).parameters / 1e9, billions, delta=0.001)

    def test_launches_of_a_layer_on_a_gpu(self):
        self.assertEqual(sum(one.launches for one in cost.layer_forward(self.model, self.batch)), 11)
        self.assertEqual(sum(one.launches for one in cost.layer_backward(self.model, self.batch)), 20)

    def test_matmuls_are_two_operations_per_weight_and_token(self):
        weights = sum(inputs * outputs for _, inputs, outputs in cost.linears(self.model))
        forward = flops(cost.layer_forward(self.model, self.batch))
        self.assertEqual(forward, 2.0 * weights * self.batch.tokens)
        self.assertEqual(flops(cost.layer_backward(self.model, self.batch)), 2 * forward)

    def test_twice_the_rows_are_twice_the_matmuls(self):
        doubled = dataclasses.replace(self.batch, rows=2 * self.batch.rows)
        for recomputes in (False, True):
            one, two = (cost_model.Run(self.model, batch, recomputes=recomputes) for batch in (self.batch, doubled))
            self.assertEqual(2 * flops(all_operations(one)), flops(all_operations(two)))

    def test_twice_the_length_is_four_times_the_attention(self):
        longer = dataclasses.replace(self.batch, length=64 * self.batch.length)
        longest = dataclasses.replace(self.batch, length=128 * self.batch.length)
        ratio = cost.attention_flops(self.model, longest) / cost.attention_flops(self.model, longer)
        self.assertAlmostEqual(ratio, 4, delta=0.01)

    def test_recomputation_is_a_forward_without_the_down_projection_and_the_last_sum(self):
        without = all_operations(cost_model.Run(self.model, self.batch))
        for tree, left_out in ((cost.NOW, 2), (cost.RECORDED, 0)):
            again = all_operations(cost_model.Run(self.model, self.batch, recomputes=True, tree=tree))
            forward = cost.layer_forward(self.model, self.batch)
            self.assertEqual([one.name for one in forward[-2:]], ["down", "residual sum"])
            kept = forward[: len(forward) - left_out]
            for what in ("flops", "bytes", "launches"):
                more = sum(getattr(one, what) for one in again) - sum(getattr(one, what) for one in without)
                self.assertEqual(more, self.model.layers * sum(getattr(one, what) for one in kept))

    def test_experts_are_refused(self):
        with self.assertRaisesRegex(ValueError, "experts are not modelled"):
            cost.Model.of_config("m", {"num_experts": 8})


class Steps(unittest.TestCase):
    def predict(self, **changes):
        run = cost_model.Run(cost_model.config("qwen3_4b"), cost.Batch(4, 2048, 2), recomputes=True, **changes)
        return cost_model.predict(run, cost_model.fit())

    def test_shares_sum_to_one(self):
        for placement in ("cpu", "gpu", "auto"):
            shares = [row[-1] for row in cost_model.shares(self.predict(placement=placement))]
            self.assertAlmostEqual(sum(shares), 1)
            self.assertGreater(min(shares), -0.001)

    def test_the_order_of_steps_is_plausible(self):
        cpu, auto, off = self.predict(placement="cpu"), self.predict(), self.predict(overlap="off")
        self.assertLess(auto.step_s, cpu.step_s)
        self.assertLess(auto.step_s, off.step_s)
        self.assertGreaterEqual(cpu.step_s, cpu.spent["host updates"])
        self.assertGreaterEqual(auto.step_s, auto.compute_s)
        self.assertLessEqual(self.predict(placement="cpu").step_s, self.predict(placement="cpu", speculates=False).step_s)

    def test_this_tree_is_not_slower_than_the_recorded_one(self):
        for placement in ("cpu", "gpu"):
            self.assertLess(self.predict(placement=placement).step_s, self.predict(placement=placement, tree=cost.RECORDED).step_s)

    def test_a_model_that_fits_nowhere_is_refused(self):
        run = cost_model.Run(cost_model.config("qwen3_14b"), cost.Batch(2, 4096, 2), recomputes=True)
        with self.assertRaisesRegex(ValueError, "no placement fits into H100"):
            cost_model.predict(run, cost_model.fit())


class Printed(Program):
    def test_the_page_is_in_step(self):
        self.assertEqual(self.said("--expect", "--check"), "")

    def test_shares_of_a_step(self):
        said = self.said(cost_model.CONFIGS / "qwen3_0.6b.json", "--recorded", "--placement", "gpu", "--no-speculation")
        self.assertIn("596 M parameters, 8 x 1024, H100: 104.0 ms", said)
        shares = [float(line.split()[-1]) for line in said.splitlines()[2:-3]]
        self.assertAlmostEqual(sum(shares), 100, delta=0.3)

    def test_nothing_asked_for_is_refused(self):
        done = subprocess.run([sys.executable, TOOL], text=True, capture_output=True, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("a config.json, --fit or --expect", done.stderr)


if __name__ == "__main__":
    unittest.main()
