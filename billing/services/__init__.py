"""Services: functions that change credit, each in one transaction."""
