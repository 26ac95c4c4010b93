"""Whether a figure keeps to its sheet."""


def assert_within(figure):
    """No text of a figure reaches beyond its left or right edge."""
    figure.canvas.draw()
    width = figure.bbox.width
    for text in figure.findobj(lambda each: hasattr(each, "get_text")):
        if text.get_text() and text.get_visible():
            box = text.get_window_extent()
            assert box.x0 >= -1 and box.x1 <= width + 1, (text.get_text(), box.x0, box.x1, width)
