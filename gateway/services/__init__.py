"""Services: functions that change tenancy, keys and models, each in one transaction."""
