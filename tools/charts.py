"""Charts of a few figures each: bars beside each other, lines over steps of something. Drawn by svg.py."""
import math

from svg import GRID, INK, SOFT, Picture, tick_distance

WIDTH, RIGHT = 860, 60
COLORS = ["#2b6ca3", "#e6731a", "#3f8f49", "#8b6fb5", "#7d868e"]  # ours first
PEERS = {"PyTorch": COLORS[1], "DeepSpeed": COLORS[3], "CAF": COLORS[4]}  # one color on every chart
BAR, BETWEEN, TOP, APART = 15, 12, 62, 13


class Axis:
    """A value's place between two ends, linear or logarithmic, and the ticks."""

    def __init__(self, values, begin, end, is_log):
        self.begin, self.end, self.is_log = begin, end, is_log
        if is_log:
            self.least, self.most = 10.0 ** math.floor(math.log10(min(values))), 1.25 * max(values)
            powers = range(int(math.log10(self.least)), math.ceil(math.log10(self.most)) + 1)
            self.ticks = [t for p in powers for t in (10.0 ** p,) if t <= self.most]
        else:
            self.least, self.most = 0.0, 1.08 * max(values)
            distance = tick_distance(self.most, 8)
            self.ticks = [i * distance for i in range(int(self.most / distance) + 1)]

    def __call__(self, value):
        if self.is_log:
            share = math.log(max(value, self.least) / self.least) / math.log(self.most / self.least)
        else:
            share = value / self.most
        return self.begin + share * (self.end - self.begin)


def said(value):
    return f"{value:,.0f}".replace(",", " ") if value >= 1000 else f"{value:.3g}"


def colors_of(names):
    known = [next((color for peer, color in PEERS.items() if name.startswith(peer)), None) for name in names]
    left = iter(color for color in COLORS if color not in known)
    return [color or next(left) for color in known]


def head(picture, left, title, names, colors):
    picture.text(16, 24, title, more=' font-size="15" font-weight="bold"')
    x = left
    for name, color in zip(names, colors):
        picture.rect(x, 38, 12, 12, color)
        picture.text(x + 17, 49, name)
        x += 36 + 7 * len(name)


def foot(picture, y, source):
    for i, line in enumerate(source):
        picture.text(16, y + 16 * i, line, SOFT, more=' font-size="11.5"')


def bars(title, unit, groups, source, is_log=False, mark=None):
    """groups: [label, [(series, value, its least, its most; None: one value)]]; `mark` a value with a dashed line."""
    names = list(dict.fromkeys(bar[0] for _, group in groups for bar in group))
    color = dict(zip(names, colors_of(names)))
    left = 28 + max(7 * len(label) for label, _ in groups)
    height = TOP + sum(len(group) * BAR + BETWEEN for _, group in groups)
    axis = Axis([value for _, group in groups for bar in group for value in bar[1:] if value], left, WIDTH - RIGHT, is_log)
    picture = Picture(WIDTH, height + 46 + 16 * len(source))
    head(picture, left, title, names, color.values())
    for tick in axis.ticks:
        picture.line(axis(tick), TOP - 4, axis(tick), height, GRID)
        picture.text(axis(tick), height + 16, said(tick), SOFT, "middle")
    picture.text(WIDTH - RIGHT, height + 32, unit, SOFT, "end")
    y = TOP
    for label, group in groups:
        picture.text(left - 8, y + len(group) * BAR / 2 + 5, label, anchor="end")
        for series, value, low, high in group:
            picture.rect(left, y, axis(value) - left, BAR - 2, color[series], f"{label}, {series}: {said(value)} {unit}")
            end = axis(value)
            if low is not None:
                picture.line(axis(low), y + BAR / 2 - 1, axis(high), y + BAR / 2 - 1, INK)
                end = max(end, axis(high))
            picture.text(end + 5, y + BAR - 4, said(value), more=' font-size="11.5"')
            y += BAR
        y += BETWEEN
    if mark is not None:
        picture.line(axis(mark), TOP - 6, axis(mark), height, INK, ' stroke-dasharray="5 3"')
    foot(picture, height + 52, source)
    return picture.done()


def lines(title, x_name, y_name, steps, series, source, is_log=False, mark=None):
    """series: {name: values at the steps}, dotted where its name ends in "goal"; `mark` a value with a dashed line."""
    left, height = 76, 340
    axis = Axis([v for values in series.values() for v in values] + ([mark] if mark else []), height, TOP, is_log)
    picture = Picture(WIDTH, height + 46 + 16 * len(source))
    colors = [INK if name.endswith("goal") else color for name, color in zip(series, colors_of(series))]
    head(picture, left, title, series, colors)

    def x_of(i):
        return left + 20 + i * (WIDTH - RIGHT - left - 40) / (len(steps) - 1)

    for tick in axis.ticks:
        picture.line(left, axis(tick), WIDTH - RIGHT, axis(tick), GRID)
        picture.text(left - 8, axis(tick) + 4, said(tick), SOFT, "end")
    for i, step in enumerate(steps):
        picture.text(x_of(i), height + 18, step, SOFT, "middle")
    picture.text(WIDTH - RIGHT, height + 34, f"{x_name}; up: {y_name}", SOFT, "end")
    if mark is not None:
        picture.line(left, axis(mark), WIDTH - RIGHT, axis(mark), INK, ' stroke-dasharray="5 3"')
    taken = {i: [] for i in range(len(steps))}  # where labels of figures stand
    labels = []
    for (name, values), color in zip(series.items(), colors):
        dashed = ' stroke-width="2" stroke-dasharray="2 4"' if color == INK else ' stroke-width="2.2"'
        points = [(x_of(i), axis(value)) for i, value in enumerate(values)]
        for (x1, y1), (x2, y2) in zip(points, points[1:]):
            picture.line(x1, y1, x2, y2, color, dashed)
        for i, ((x, y), value) in enumerate(zip(points, values)) if color != INK else ():
            picture.rect(x - 3, y - 3, 6, 6, color, f"{name}: {said(value)}")
            place = next((at for at in (y - 7, y + 16) if all(abs(at - other) >= APART for other in taken[i])), None)
            if place is not None:
                taken[i].append(place)
                labels.append((x, place, said(value), color, "middle", ' font-size="11" stroke="white" stroke-width="3" paint-order="stroke"'))
    for label in labels:
        picture.text(*label)
    foot(picture, height + 56, source)
    return picture.done()
