"""Networks that train where a layout says: on one device, cut over several, or split over several.

``place`` is the way in; base.py says what a placed network can do.
"""
