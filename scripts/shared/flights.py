"""Generated flights that arrive late or on time, by a known law: as many as wanted, and the best scores there are."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import expit, ndtr, xlogy

Array = npt.NDArray[Any]
# Those of Hensman et al. (2013), in the order of the sets of real flights; times are minutes after midnight.
ATTRIBUTES = (
    "month", "day_of_month", "day_of_week", "plane_age", "air_time", "distance", "dep_time", "arr_time",
)  # fmt: skip
DAYS = (31, 29, 31, 30)  # of January to April 2008, which began on a Tuesday
STORMS = ((24.0, 2.5, 0.9), (53.0, 5.0, 0.6), (78.0, 1.5, 1.2), (102.0, 3.5, 0.7))  # day, its width, strength
BANKS = ((480.0, 80.0, 0.35), (780.0, 150.0, 0.35), (1080.0, 110.0, 0.3))  # departures: middle, width, share


class Flights(NamedTuple):
    """Flights with the law that they follow."""

    X: Array  # the attributes, [N, 8]
    Y: Array  # 1 of a late arrival, else 0, [N, 1]
    late: Array  # the probability of a late arrival given the attributes, [N]


def generated(count: int, seed: int = 0) -> Flights:
    """Draw independent flights of January to April 2008; see `probit` for the law of their delays."""
    rng = np.random.default_rng(seed)
    day = rng.integers(0, sum(DAYS), count)  # of the year, from 0
    month = np.repeat(np.arange(4), DAYS)[day]
    of_month = day - np.concatenate([[0], np.cumsum(DAYS)])[month] + 1
    age = np.floor(rng.gamma(2.2, 3.8, count))
    distance = np.clip(np.round(np.exp(rng.normal(6.3, 0.65, count))), 60.0, 2900.0)
    air_time = np.round(usual_air_time(distance) * np.exp(rng.normal(0.0, 0.08, count)))
    bank = rng.choice(len(BANKS), count, p=[share for *_, share in BANKS])
    middle, width = (np.array([each[k] for each in BANKS])[bank] for k in (0, 1))
    departure = np.round(rng.normal(middle, width)) % 1440.0
    zones = 60.0 * np.clip(np.round(rng.normal(0.0, 0.9, count)), -3.0, 3.0)
    arrival = np.round(departure + air_time + 25.0 + zones) % 1440.0
    columns = (month + 1, of_month, (day + 1) % 7 + 1, age, air_time, distance, departure, arrival)
    X = np.stack(columns, axis=1).astype(float)
    late = ndtr(probit(X))
    return Flights(X, (rng.uniform(size=count) < late).astype(float)[:, None], late)


def usual_air_time(distance: Array) -> Array:
    """Return the minutes in the air of a flight of so many miles without wind."""
    return 18.0 + distance / 7.6


def probit(X: Array) -> Array:
    """Return f with P(late) = Φ(f), of attributes [N, 8].

    Delays gather over the day, more so on the days around a storm; head winds and full airports at the hour of
    arrival add to them, as do Thursdays and Fridays, old planes and, in the afternoon, some lengths of a route.
    """
    month, of_month, of_week, age, air_time, distance, departure, arrival = X.T
    day = np.concatenate([[0], np.cumsum(DAYS)])[month.astype(int) - 1] + of_month - 1.0
    gathered = expit((departure - 800.0) / 120.0)
    storm = sum(strength * np.exp(-0.5 * ((day - at) / width) ** 2) for at, width, strength in STORMS)
    full = np.exp(-0.5 * ((arrival - 1090.0) / 60.0) ** 2) + 0.6 * np.exp(
        -0.5 * ((arrival - 560.0) / 45.0) ** 2
    )
    wind = np.log(air_time / usual_air_time(distance))
    return (
        -0.9
        + 1.1 * gathered
        + storm * (0.3 + 1.2 * gathered)
        + 0.5 * full
        + 5.0 * wind
        + 0.25 * np.cos(2.0 * np.pi * (of_week - 4.5) / 7.0)
        + 0.02 * (age - 8.0)
        + 0.35 * gathered * np.sin(distance / 170.0)
    )


def best_scores(late: Array) -> dict[str, float]:
    """Return the least expected negative log-likelihood and error of these flights: those of the law itself."""
    entropy = -xlogy(late, late) - xlogy(1.0 - late, 1.0 - late)
    return {"nll": float(entropy.mean()), "error": float(np.minimum(late, 1.0 - late).mean())}
