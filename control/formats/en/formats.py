"""Moments to the second and with their zone: what happened when is what an operator asks."""

DATE_FORMAT = "j M Y"
DATETIME_FORMAT = "j M Y, H:i:s e"
SHORT_DATE_FORMAT = "Y-m-d"
SHORT_DATETIME_FORMAT = "Y-m-d H:i:s e"
TIME_FORMAT = "H:i:s"
