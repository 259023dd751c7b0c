"""Programs for those who work on Strata; none of this is in the wheel."""
