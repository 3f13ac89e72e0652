from itertools import pairwise

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from spectral_param.report import figures
from spectral_param.report.panels import density, log_colors, running_mean

STEPS = np.arange(0, 100, 5)


@pytest.fixture
def sigma():
    return 1 + 0.1 * np.random.default_rng(0).normal(size=(20, 12))


def fits(figure):
    """That nothing is cut off at the picture's edge, and no legend covers a panel."""
    FigureCanvasAgg(figure).draw()
    frame = figure.bbox.padded(1)
    for panel in figure.axes:
        box = panel.get_tightbbox()
        assert frame.x0 <= box.x0
        assert frame.y0 <= box.y0
        assert box.x1 <= frame.x1
        assert box.y1 <= frame.y1
    for legend in figure.legends:
        assert not any(legend.get_window_extent().overlaps(panel.get_window_extent()) for panel in figure.axes)
    assert figure.bbox.width >= 800


def test_ridgeline_has_a_ridge_for_each_chosen_step(sigma):
    figure = figures.sigma_ridgeline_figure({"a": (STEPS, sigma), "b": (STEPS, sigma + 1)}, {"a": (0.8, 1.2)}, ridges=5)
    assert [len(panel.lines) for panel in figure.axes] == [5, 5]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["0", "25", "50", "70", "95"]
    low, high = figure.axes[0].get_xlim()
    assert low < sigma.min()
    assert (sigma + 1).max() < high
    crest = figure.axes[1].lines[0]  # the last step's, drawn first
    peak = crest.get_xdata()[np.argmax(crest.get_ydata())]
    assert abs(peak - np.median(sigma[-1] + 1)) < 0.1
    fits(figure)


def test_density_integrates_to_one():
    x = np.linspace(-5, 5, 2000)
    sample = np.random.default_rng(0).normal(size=200)
    assert density(sample, x).sum() * (x[1] - x[0]) == pytest.approx(1, abs=1e-3)
    assert np.isfinite(density(np.ones(8), x)).all()


def test_margin_gradient_and_loss_are_drawn_as_given():
    run = {"margin": (STEPS, STEPS * 0.1), "gradient": (STEPS, 1.0 + STEPS), "loss": (STEPS, np.ones(20))}
    figure = figures.margin_gradient_loss_figure({"a": run, "b": {"loss": run["loss"]}}, radius=0.5, baseline=0.2)
    margin, gradient, loss = figure.axes
    np.testing.assert_array_equal(margin.lines[0].get_ydata()[1:], (STEPS * 0.1)[1:])
    assert np.isnan(margin.lines[0].get_ydata()[0])
    np.testing.assert_allclose(gradient.lines[1].get_ydata(), 1.0 + STEPS)
    assert margin.lines[-1].get_ydata()[0] == 0.5
    assert loss.lines[-1].get_ydata()[0] == 0.2
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b", "radius", "baseline"]
    assert [panel.get_yscale() for panel in figure.axes] == ["log", "log", "linear"]
    fits(figure)


def test_a_curve_that_nobody_has_has_no_panel_and_long_names_fit_under_the_others():
    names = [f"encoder.layers.{i}.self_attn.out_proj.weight" for i in range(6)]
    runs = {name: {"margin": (STEPS, STEPS * 0.1)} for name in names} | {"loss": {"loss": (STEPS, np.ones(20))}}
    figure = figures.margin_gradient_loss_figure(runs)
    assert [panel.get_title() for panel in figure.axes] == ["spectral margin  max|σ - 1|", "training loss"]
    fits(figure)


def test_long_titles_are_broken_where_a_name_has_a_dot():
    sigma = np.ones((20, 3))
    runs = {f"encoder.layers.{i}.self_attn.out_proj.weight": (STEPS, sigma) for i in range(3)}
    for draw in (figures.sigma_ridgeline_figure, figures.sigma_lines_figure):
        figure = draw(runs)
        assert figure.axes[0].get_title() == "encoder.layers.0.self_attn\n.out_proj.weight"
        fits(figure)
        figure.canvas.draw()
        boxes = [panel.title.get_window_extent() for panel in figure.axes]
        assert all(one.x1 < following.x0 for one, following in pairwise(boxes))


def test_running_means():
    values = np.random.default_rng(0).uniform(1, 2, size=500)
    for geometric in (False, True):
        inside = np.log(values) if geometric else values
        expected = np.array([inside[max(0, i - 9) : i + 1].mean() for i in range(500)])
        np.testing.assert_allclose(running_mean(values, geometric), np.exp(expected) if geometric else expected)
    assert np.isnan(running_mean(np.array([np.nan, 1.0]), geometric=False)[0])


def test_gradients_through_time_have_a_cell_for_each_time():
    norms = 10.0 ** -np.linspace(0, 20, 30) * np.ones((20, 1))
    norms[3, 4], norms[5] = 0, np.nan
    figure = figures.gradient_heatmap_figure({"a": (STEPS, range(30), norms), "b": (STEPS, range(30), norms / 10)})
    [mesh] = [c for c in figure.axes[0].collections if c.get_array() is not None]
    assert mesh.get_array().shape == (30, 20)
    assert mesh.norm.vmax == 1
    assert mesh.norm.vmin == pytest.approx(1e-12)
    assert mesh.get_array()[0, 0] == 1
    assert mesh.get_array().min() == pytest.approx(1e-12)
    fits(figure)


def test_long_runs_are_thinned():
    norms = np.ones((5000, 3))
    figure = figures.gradient_heatmap_figure({"a": (range(5000), range(3), norms)})
    [mesh] = [c for c in figure.axes[0].collections if c.get_array() is not None]
    assert mesh.get_array().shape == (3, 200)


def test_colors_of_values_all_alike_or_all_missing():
    for values in (np.full(3, 0.5), np.zeros(3), np.full(3, np.nan)):
        colors = log_colors(values, decades=3)
        assert 0 < colors.vmin < colors.vmax


def test_every_sigma_is_a_line_and_many_are_quantiles(sigma):
    figure = figures.sigma_lines_figure({"a": (STEPS, sigma)}, {"a": (0.8, 1.2)})
    lines = [line.get_ydata() for line in figure.axes[0].lines]
    np.testing.assert_allclose(np.array(lines).T, np.sort(sigma, axis=1))
    fits(figure)
    figure = figures.sigma_lines_figure({"a": (STEPS, sigma)}, lines=11)
    np.testing.assert_allclose(figure.axes[0].lines[0].get_ydata(), np.median(sigma, axis=1))
    fits(figure)


def test_margins_have_a_row_for_each_weight(sigma):
    margins = {f"layer.{i}.weight": np.abs(sigma[:, i] - 1) for i in range(12)}
    figure = figures.margin_heatmap_figure({"plain": (STEPS, margins), "svd": (STEPS, margins)})
    [mesh] = [c for c in figure.axes[1].collections if c.get_array() is not None]
    np.testing.assert_allclose(mesh.get_array(), np.maximum(np.stack(list(margins.values())), mesh.norm.vmin))
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == list(margins)
    assert figure.axes[0].yaxis_inverted()
    fits(figure)


def test_saturation_is_the_share_at_each_edge():
    sigma = np.array([[0.9, 1.0, 1.1, 1.1], [0.9, 0.9, 0.9, 1.0975]])
    figure = figures.saturation_figure([0, 1], sigma, 0.9, 1.1, title="a")
    upper, lower = (collection.get_paths()[0].vertices[:, 1] for collection in figure.axes[0].collections)
    assert upper.max() == 0.5
    assert lower.min() == -0.75
    fits(figure)
