"""`kernelflume bench`: a load generator and trace replayer for any endpoint that speaks OpenAI's API."""
