"""One file per figure of `report.PLOTS`: its numbers, `plot` for print, and `page` for a page, with every value on hover."""
