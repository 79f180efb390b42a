"""The checks of an installation: one list for doctor, the periodic work, the metric and pages."""
