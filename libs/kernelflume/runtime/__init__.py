"""What every process needs whatever it does: settings, logging, time, and a start and an end."""
