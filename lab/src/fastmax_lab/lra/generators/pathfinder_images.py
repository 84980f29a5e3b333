"""Pathfinder images: draws scenes of dashes, puts the two dots, and labels whether one contour joins them."""

from collections.abc import Iterator

import numpy as np

from fastmax_lab.lra.generators.pathfinder_scenes import DASH, THICKNESS, WINDOW, Dashes, scenes

MARKER_RADIUS = 1.5
TARGET_CONTRAST = 0.75 * 2
DISTRACTOR_CONTRAST = 2.0
_ATTEMPTS = 2048  # contours begun per batch: enough of them find a partner
_HALF = 3  # half the side of the patch that a dash or a dot may touch, in pixels


def generate(rng: np.random.Generator) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield batches of images (count, 32, 32) in bytes and labels (count,), without end. Every even number is balanced."""
    while True:
        contours, distractors = scenes(rng, _ATTEMPTS)
        count = len(contours.tails) // 2 * 2
        first = rng.integers(0, 2, count // 2)
        labels = np.stack([first, 1 - first], 1).ravel()
        keep = np.arange(count)
        yield draw(contours[keep], distractors[keep], labels), labels


def draw(contours: Dashes, distractors: Dashes, labels: np.ndarray) -> np.ndarray:
    """Draw images with dots at the origin of the first contour and at the end of the first (label 1) or second (label 0)."""
    rows = np.arange(len(labels))
    canvas = np.zeros((len(labels), WINDOW, WINDOW), np.float32)
    for dashes, contrast in ((contours, TARGET_CONTRAST), (distractors, DISTRACTOR_CONTRAST)):
        for contour in range(dashes.tails.shape[1]):
            for dash in range(dashes.tails.shape[2]):
                one = Dashes(dashes.tails[:, contour, dash], dashes.directions[:, contour, dash])
                there = np.flatnonzero(~np.isnan(one.tails))
                _dash(canvas, there, one[there], contrast)
    _dot(canvas, rows, contours.tails[:, 0, 0])
    _dot(canvas, rows, contours.at(DASH)[rows, 1 - labels, -1, 0])
    bright = canvas / canvas.max((1, 2), keepdims=True)
    levels: np.ndarray = np.rint(255 * bright).astype(np.uint8)
    return levels


def _dash(canvas: np.ndarray, rows: np.ndarray, dash: Dashes, contrast: float) -> None:
    """Draw a line thinner than a pixel: a pixel is lit by the part of it that the line covers."""
    centre = dash.at(DASH / 2)[:, 0]
    x, y, away = _patch(centre)
    turned = away * dash.directions.conj()[:, None, None]
    distance = np.hypot(np.maximum(np.abs(turned.real) - DASH / 2, 0), turned.imag)
    _light(canvas, rows, x, y, contrast * np.clip((1 + THICKNESS) / 2 - distance, 0, THICKNESS))


def _dot(canvas: np.ndarray, rows: np.ndarray, centre: np.ndarray) -> None:
    x, y, away = _patch(centre)
    _light(canvas, rows, x, y, np.clip(MARKER_RADIUS + 0.5 - np.abs(away), 0, 1))


def _patch(centre: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the pixels around each point, and the distance of their centres from it."""
    around = np.arange(-_HALF, _HALF + 1)
    x = np.floor(centre.real).astype(np.intp)[:, None, None] + around
    y = np.floor(centre.imag).astype(np.intp)[:, None, None] + around[:, None]
    return x, y, (x + 0.5 + 1j * (y + 0.5)) - centre[:, None, None]


def _light(canvas: np.ndarray, rows: np.ndarray, x: np.ndarray, y: np.ndarray, light: np.ndarray) -> None:
    """Set pixels to the brighter of old and new, in the part of the patch that lies in the window."""
    inside = (x >= 0) & (x < WINDOW) & (y >= 0) & (y < WINDOW)
    i, j, k = np.nonzero((light > 0) & inside)
    where = rows[i], y[i, j, 0], x[i, 0, k]
    canvas[where] = np.maximum(canvas[where], light[i, j, k])
