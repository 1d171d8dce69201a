"""SVG for the tools that draw: dark ink on a white ground, so that it reads on dark pages as well."""
from xml.sax.saxutils import escape

INK, SOFT, GRID = "#222", "#666", "#e3e3e3"


def tick_distance(length, most):
    """Returns the distance of at most `most` ticks on an axis of that length: 1, 2 or 5 times a power of ten."""
    power = 10.0 ** -6
    while True:
        for times in (1, 2, 5):
            if length / (times * power) <= most:
                return times * power
        power *= 10


class Picture:
    def __init__(self, width, height):
        self.parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
                      'font-family="Helvetica, Arial, sans-serif" font-size="13">',
                      f'<rect width="{width}" height="{height}" fill="white"/>']

    def rect(self, x, y, width, height, fill, title=None, more=""):
        end = f"><title>{escape(title)}</title></rect>" if title else "/>"
        self.parts.append(f'<rect x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height}" fill="{fill}"{more}{end}')

    def line(self, x1, y1, x2, y2, stroke, more=""):
        self.parts.append(f'<path d="M{x1:.2f} {y1:.2f}L{x2:.2f} {y2:.2f}" stroke="{stroke}"{more}/>')

    def text(self, x, y, text, fill=INK, anchor="start", more=""):
        self.parts.append(f'<text x="{x:.2f}" y="{y:.2f}" fill="{fill}" text-anchor="{anchor}"{more}>{escape(text)}</text>')

    def triangle(self, x, y, title=None):
        end = f"><title>{escape(title)}</title></path>" if title else "/>"
        self.parts.append(f'<path d="M{x - 5:.2f} {y} h10 l-5 8 z" fill="{INK}"{end}')

    def done(self):
        return "\n".join(self.parts) + "\n</svg>\n"
