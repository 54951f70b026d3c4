"""`fastload look`: samples as a trainer gets them, with boxes, outlines, points and masks, drawn on
a page.

`samples` makes them by a Loader, `page` draws them.
"""
