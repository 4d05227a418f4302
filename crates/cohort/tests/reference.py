"""The same statistics by scipy, statsmodels and plain definitions. Cases come on stdin as JSON, answers go to stdout."""

import json
import sys

import numpy as np
from scipy import stats
from scipy.stats.contingency import relative_risk
from statsmodels.stats.contingency_tables import StratifiedTable

np.seterr(all="ignore")


def number(x):
    """JSON has neither infinity nor NaN."""
    return float(x) if np.isfinite(x) else None


def fisher(t):
    inside, elsewhere = [t["sick"], t["of"] - t["sick"]], [t["elsewhere_sick"], t["elsewhere"] - t["elsewhere_sick"]]
    return number(stats.fisher_exact([inside, elsewhere]).pvalue)


def risk_ratio(t):
    a, n, c, m = t["sick"], t["of"], t["elsewhere_sick"], t["elsewhere"]
    if a and c:
        result = relative_risk(a, n, c, m)
        interval = result.confidence_interval(0.95)
        return [number(result.relative_risk), number(interval.low), number(interval.high)]
    # scipy takes no half nodes: Haldane's correction by its formula.
    a, n, c, m = a + 0.5, n + 1, c + 0.5, m + 1
    error = stats.norm.ppf(0.975) * np.sqrt(1 / a - 1 / n + 1 / c - 1 / m)
    ratio = (a / n) / (c / m)
    return [number(ratio), number(ratio * np.exp(-error)), number(ratio * np.exp(error))]


def pooled(tables):
    # statsmodels wants exposure in rows, outcome in columns.
    grid = np.array(
        [[[t["sick"], t["of"] - t["sick"]], [t["elsewhere_sick"], t["elsewhere"] - t["elsewhere_sick"]]] for t in tables]
    )
    strata = StratifiedTable([g.astype(float) for g in grid])
    # Greenland and Robins (1985), their formula for the variance of the logarithm of the risk ratio.
    a, n1, c, n0 = grid[:, 0, 0], grid[:, 0].sum(1), grid[:, 1, 0], grid[:, 1].sum(1)
    n = n1 + n0
    variance = ((n1 * n0 * (a + c) - a * c * n) / n**2).sum() / ((a * n0 / n).sum() * (c * n1 / n).sum())
    ratio, error = strata.riskratio_pooled, stats.norm.ppf(0.975) * np.sqrt(variance)
    return {
        "odds_ratio": number(strata.oddsratio_pooled),
        "risk_ratio": [number(ratio), number(ratio * np.exp(-error)), number(ratio * np.exp(error))],
    }


def tails(tables):
    total = np.array([1.0])
    for t in tables:
        nodes, sick = t["of"] + t["elsewhere"], t["sick"] + t["elsewhere_sick"]
        total = np.convolve(total, stats.hypergeom.pmf(np.arange(sick + 1), nodes, sick, t["of"]))
    seen = sum(t["sick"] for t in tables)
    return [float(total[seen:].sum()), float(total[: seen + 1].sum())]


def kaplan_meier(lives):
    """By definition: at each onset, who was being watched just before?"""
    lives = [(l["hours"], l["onset"], l["entered_after_hours"]) for l in lives]
    survival, points = 1.0, []
    for hours in sorted({h for h, onset, _ in lives if onset}):
        watched = sum(1 for h, _, entered in lives if h >= hours and (entered < hours or entered == 0))
        onsets = sum(1 for h, onset, entered in lives if onset and h == hours and (entered < hours or entered == 0))
        if onsets:
            survival *= 1 - onsets / watched
            points.append([hours, survival, watched])
    if all(entered == 0 for _, _, entered in lives):
        # Without late entries scipy can do it, too.
        data = stats.CensoredData(
            uncensored=[h for h, onset, _ in lives if onset], right=[h for h, onset, _ in lives if not onset]
        )
        curve = stats.ecdf(data).sf
        for hours, survival, _ in points:
            assert abs(float(curve.evaluate(hours)) - survival) < 1e-9
    return points


cases = json.load(sys.stdin)
json.dump(
    {
        "fisher": [fisher(t) for t in cases["tables"]],
        "risk_ratio": [risk_ratio(t) for t in cases["tables"]],
        "adjusted": [float(p) for p in stats.false_discovery_control(cases["p"])],
        "pooled": [pooled(s) for s in cases["strata"]],
        "tails": [tails(s) for s in cases["strata"]],
        "curves": [kaplan_meier(lives) for lives in cases["lives"]],
    },
    sys.stdout,
)
