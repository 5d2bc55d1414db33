"""Products with a constant weight: every way is the plain product; what is measured is kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from nanofw.kernels import products
from nanofw.kernels.product_cache import ProductCache
from nanofw.kernels.products import ROWS, ConstantWeight, ProductChoice, WeightShape, choose
from nanofw.runtime.threads import settle_threads

SHAPE = WeightShape(260, 300, torch.float32)
WAYS = [(layout, name) for layout, names in products._PRODUCTS.items() for name in names]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(products, "_known", {})
    return tmp_path / "nanofw"


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("products-*.json"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("layout", "name"), WAYS)
def test_every_way_is_the_plain_product(
    layout: str, name: str, bias: bool, dtype: torch.dtype
) -> None:
    shape = WeightShape(20, 33, dtype)
    if name != "numpy" and name not in products._ways(shape).get(layout, ()):
        pytest.skip(f"{name} takes no {dtype} here")
    if name == "numpy" and dtype != torch.float32:
        pytest.skip("NumPy has no bfloat16")
    weight, offset = torch.randn(33, 20).to(dtype), torch.randn(33).to(dtype) if bias else None
    constant = ConstantWeight(weight, ProductChoice(layout, (name,) * len(ROWS)))
    tolerance = 1e-5 if dtype == torch.float32 else 5e-2
    for lines in ((0,), (1,), (3,), (2, 35)):
        x = torch.randn(*lines, 40).to(dtype)[..., ::2]
        got, expected = constant.multiply(x, offset), functional.linear(x, weight, offset)
        torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)
        assert got.is_contiguous()


def test_numbers_of_rows_go_their_own_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    ways = {str(rows): lambda x, w, b, rows=rows: seen.append(rows) for rows in ROWS}
    monkeypatch.setattr(products, "_PRODUCTS", {"plain": ways})
    constant = ConstantWeight(torch.ones(2, 2), ProductChoice("plain", tuple(map(str, ROWS))))
    for rows in (0, 1, 2, 3, 4, 6, 8, 12, 13, 24, 25, 64, 65, 1024):
        constant.multiply(torch.ones(rows, 2))
    assert seen == [1, 1, 2, 2, 4, 4, 8, 8, 16, 16, 32, 32, 128, 128]


def test_numpys_one_thread_takes_part_beside_more_of_pytorchs(folder: Path) -> None:
    before = torch.get_num_threads()
    try:
        settle_threads(2)
        choose([SHAPE])
    finally:
        settle_threads(before)
    (file,) = files(folder)
    (name,) = json.loads(file.read_text())["choices"]
    assert name == "260 x 300 float32, threads 2, numpy"


def test_what_was_measured_is_kept_for_the_next_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = choose([SHAPE])[SHAPE]
    assert choice.layout in products._LAYOUTS
    assert len(choice.products) == len(ROWS)
    (file,) = files(folder)
    content = json.loads(file.read_text())
    (kept,) = content["choices"].values()
    assert kept == {"layout": choice.layout, "products": list(choice.products)}
    monkeypatch.setattr(products, "_known", {})
    monkeypatch.setattr(products, "_measure", lambda shapes: pytest.fail("measured again"))
    assert choose([SHAPE])[SHAPE] == choice
    other = {"layout": "plain", "products": ["rows"] * len(ROWS)}
    content["choices"] = dict.fromkeys(content["choices"], other)
    file.write_text(json.dumps(content))
    monkeypatch.setattr(products, "_known", {})
    assert choose([SHAPE])[SHAPE] == ProductChoice("plain", ("rows",) * len(ROWS))


@pytest.mark.parametrize(
    "text",
    ["", "[1]", '{"choices": 3}', '{"choices": {"NAME": {"layout": "odd", "products": ["x"]}}}'],
)
def test_a_damaged_file_is_no_obstacle(folder: Path, text: str) -> None:
    path = ProductCache().path
    path.parent.mkdir(parents=True)
    path.write_text(text.replace("NAME", products._name(SHAPE)))
    assert choose([SHAPE])[SHAPE].layout in products._LAYOUTS


def test_a_folder_that_cannot_be_made_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(products, "_known", {})
    assert choose([SHAPE])[SHAPE].layout in products._LAYOUTS


def test_small_weights_are_not_measured(folder: Path) -> None:
    small = WeightShape(16, 16, torch.float32)
    assert len(choose([small])[small].products) == len(ROWS)
    assert not files(folder)


def test_a_shared_weight_is_never_packed() -> None:
    assert "packed" not in products._ways(SHAPE._replace(is_shared=True))
    measured = [{("packed", "onednn"): 1.0, ("plain", "rows"): 3.0, ("plain", "columns"): 2.0}]
    assert products._best(measured * 2) == ("packed", ["onednn", "onednn"])
