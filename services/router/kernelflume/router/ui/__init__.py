"""The live page at /ui: what the router knows of its cluster, for people, and a chat box."""
