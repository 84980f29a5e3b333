"""The geometry of Pathfinder images: dashed contours that never touch, grown in many images at once.

Positions are complex numbers, x + iy in pixels, and directions are unit complex numbers, so that a turn is a product.
"""

from dataclasses import dataclass

import numpy as np

WINDOW = 32
PADDING = 1.0
DASH = 2.0
THICKNESS = 0.5
MARGIN = 1.0  # free space before and after a dash, and around it
SEED_DISTANCE = 7.0  # between the origins of the two long contours, to the nearest pixel
CONTOUR = 14  # dashes of each of them
DISTRACTOR = CONTOUR // 3
DISTRACTORS = 20 // DISTRACTOR
CLEARANCE = 2 * MARGIN  # between dashes that do not follow one another

_TURNS = 16  # how many are tried before a contour is stuck
_PLACES = 32  # how many are tried for a distractor
_DISTRACTOR_TRIALS = 5
_FREE = np.uint8(255)
_ALONG = np.array([0.0, DASH / 2, DASH], np.float32)
_BOX = np.arange(-4, 5)  # the pixels around a dash that it may cover
_AHEAD = np.exp(1j * np.radians([-70, -35, 0, 35, 70])).astype(np.complex64)
_ANGLES = np.linspace(-np.pi / 2, np.pi / 2, 10001)
_CUMULATIVE = (_ANGLES + np.sin(2 * _ANGLES) / 2) / np.pi + 0.5  # of the density cos², that of continuity 1
_EQUALLY_LIKELY_TURNS = np.exp(1j * np.interp((np.arange(4096) + 0.5) / 4096, _CUMULATIVE, _ANGLES)).astype(
    np.complex64
)


@dataclass(frozen=True)
class Dashes:
    """Dashes as (images, contours, dashes) or (contours, dashes); NaN where a contour is absent."""

    tails: np.ndarray
    directions: np.ndarray

    def at(self, along: np.ndarray | float) -> np.ndarray:
        """Return the points so far along each dash."""
        points: np.ndarray = self.tails[..., None] + self.directions[..., None] * np.asarray(along, np.float32)
        return points

    def __getitem__(self, index: np.ndarray) -> "Dashes":
        return Dashes(self.tails[index], self.directions[index])


def scenes(rng: np.random.Generator, attempts: int) -> tuple[Dashes, Dashes]:
    """Return the two long contours and the distractors of as many images as succeed.

    The long contours are grown one by one and then paired, each used once, so that no pair touches. To grow both in
    one window and start over whenever one is stuck has the same outcome, once in a thousand attempts.
    """
    near = _uniform(rng, 2 * SEED_DISTANCE, WINDOW - 2 * SEED_DISTANCE, 2 * attempts)
    far = near[attempts:] + np.float32(SEED_DISTANCE) * _any_direction(rng, attempts)
    first, first_cover = _long_contours(rng, near[:attempts])
    second, second_cover = _long_contours(rng, far)
    one, two = _pairs(first, first_cover, second)
    swap = rng.random(len(one)) < 0.5
    tails = np.stack([first.tails[one], second.tails[two]], 1)
    directions = np.stack([first.directions[one], second.directions[two]], 1)
    tails[swap], directions[swap] = tails[swap, ::-1], directions[swap, ::-1]
    taken = np.minimum(first_cover[one], second_cover[two])
    short = [_distractors(rng, taken) for _ in range(DISTRACTORS)]
    distractors = Dashes(np.stack([s.tails for s in short], 1), np.stack([s.directions for s in short], 1))
    return Dashes(tails, directions), distractors


def _long_contours(rng: np.random.Generator, origins: np.ndarray) -> tuple[Dashes, np.ndarray]:
    """Return the contours that reach their full length, and what they cover."""
    cover = np.full((len(origins), WINDOW, WINDOW), _FREE)
    dashes, rows = _grow(rng, cover, np.arange(len(origins)), origins, _any_direction(rng, len(origins)), CONTOUR)
    return dashes, cover[rows]


def _pairs(first: Dashes, cover: np.ndarray, second: Dashes) -> tuple[np.ndarray, np.ndarray]:
    """Pair contours that do not touch and whose origins are far enough apart, each used once; return their indices."""
    x, y = _pixels(second.at(_ALONG))
    drawn = np.zeros((len(x), WINDOW, WINDOW), bool)
    drawn[np.arange(len(x))[:, None, None], y, x] = True
    touch = (cover != _FREE).reshape(len(cover), -1).astype(np.float32) @ drawn.reshape(len(x), -1).T.astype(np.float32)
    apart = np.abs(first.tails[:, None, 0] - second.tails[None, :, 0])
    fits = (touch == 0) & (np.abs(apart - SEED_DISTANCE) < 0.5)
    pairs = []
    for one in np.argsort(fits.sum(1), kind="stable"):
        partners = np.flatnonzero(fits[one])
        if len(partners):
            fits[:, partners[0]] = False
            pairs.append((one, partners[0]))
    found = np.array(sorted(pairs), int).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def _distractors(rng: np.random.Generator, taken: np.ndarray) -> Dashes:
    """Draw one short contour per image wherever there is room, marked in `taken`."""
    shape = (len(taken), DISTRACTOR)
    tails, directions = np.full(shape, np.nan, np.complex64), np.full(shape, np.nan, np.complex64)
    rows = np.arange(len(taken))
    for _ in range(_DISTRACTOR_TRIALS):
        origins = _uniform(rng, 0, WINDOW, len(rows) * _PLACES).reshape(-1, _PLACES)
        headings = _any_direction(rng, origins.size).reshape(origins.shape)
        fits = _fits(taken, rows, np.zeros(len(rows), np.uint8) + _FREE, origins, headings)
        first = fits.argmax(1)
        some = np.flatnonzero(fits.any(1))
        cover = np.where(taken == _FREE, _FREE, np.uint8(0))
        grown, kept = _grow(rng, cover, rows[some], origins[some, first[some]], headings[some, first[some]], DISTRACTOR)
        tails[kept], directions[kept] = grown.tails, grown.directions
        taken[kept] = cover[kept]
        rows = np.setdiff1d(rows, kept, assume_unique=True)
    return Dashes(tails, directions)


def _grow(
    rng: np.random.Generator,
    cover: np.ndarray,
    rows: np.ndarray,
    origins: np.ndarray,
    headings: np.ndarray,
    length: int,
) -> tuple[Dashes, np.ndarray]:
    """Grow contours of `length` dashes from their origins, and return in which rows they were completed.

    `cover` holds for every pixel the number of the first dash that covers it, counted from 1; 0 is what was there.
    """
    tails, directions = [origins], [headings]
    _stamp(cover, rows, 1, origins, headings)
    for step in range(2, length + 1):
        heading = directions[-1][:, None]
        turned = heading * rng.choice(_EQUALLY_LIKELY_TURNS, (len(rows), _TURNS))
        ends = tails[-1][:, None] + np.float32(DASH) * heading
        starts = ends + np.float32(MARGIN) * (heading + turned)
        fits = _fits(cover, rows, np.full(len(rows), step - 1, np.uint8), starts, turned)
        first, kept = fits.argmax(1), np.flatnonzero(fits.any(1))
        rows = rows[kept]
        tails = [t[kept] for t in tails] + [starts[kept, first[kept]]]
        directions = [d[kept] for d in directions] + [turned[kept, first[kept]]]
        _stamp(cover, rows, step, tails[-1], directions[-1])
    return Dashes(np.stack(tails, 1), np.stack(directions, 1)), rows


def _fits(
    cover: np.ndarray, rows: np.ndarray, least: np.ndarray, tails: np.ndarray, directions: np.ndarray
) -> np.ndarray:
    """Return which of the (rows, trials) dashes lie clear of all dashes before `least` and leave a way on."""
    dash = Dashes(tails, directions)
    way_on = dash.at(DASH + MARGIN) + directions[..., None] * _AHEAD * np.float32(MARGIN + DASH)
    points = np.concatenate([dash.at(_ALONG), way_on], -1)
    low, high = PADDING + MARGIN, WINDOW - PADDING - MARGIN
    inside = (points.real >= low) & (points.real <= high) & (points.imag >= low) & (points.imag <= high)
    x, y = _pixels(points)
    free = inside & (cover[rows[:, None, None], y, x] >= least[:, None, None])
    fits: np.ndarray = free[..., : len(_ALONG)].all(-1) & free[..., len(_ALONG) :].any(-1)
    return fits


def _stamp(cover: np.ndarray, rows: np.ndarray, step: int, tails: np.ndarray, directions: np.ndarray) -> None:
    """Cover the pixels whose centres are nearer to the dash than CLEARANCE."""
    centre = Dashes(tails, directions).at(DASH / 2)[:, :, None]
    x = np.floor(centre.real).astype(np.intp) + _BOX
    y = np.floor(centre.imag).astype(np.intp) + _BOX[:, None]
    dx = (x + 0.5 - centre.real).astype(np.float32)
    dy = (y + 0.5 - centre.imag).astype(np.float32)
    cos, sin = directions.real[:, None, None], directions.imag[:, None, None]
    beyond = np.maximum(np.abs(dx * cos + dy * sin) - np.float32(DASH / 2), 0)
    near = beyond**2 + (dy * cos - dx * sin) ** 2 < CLEARANCE**2
    i, j, k = np.nonzero(near & (x >= 0) & (x < WINDOW) & (y >= 0) & (y < WINDOW))
    where = rows[i], y[i, j, 0], x[i, 0, k]
    cover[where] = np.minimum(cover[where], np.uint8(step))


def _pixels(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    x, y = (np.clip(p, 0, WINDOW - 1).astype(np.intp) for p in (points.real, points.imag))
    return x, y


def _any_direction(rng: np.random.Generator, count: int) -> np.ndarray:
    angles = rng.uniform(-np.pi, np.pi, count)
    return (np.cos(angles) + 1j * np.sin(angles)).astype(np.complex64)


def _uniform(rng: np.random.Generator, low: float, high: float, count: int) -> np.ndarray:
    return (rng.uniform(low, high, count) + 1j * rng.uniform(low, high, count)).astype(np.complex64)
