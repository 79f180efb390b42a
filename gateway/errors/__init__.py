"""How we say no: an operation's error, a request's refusal, an engine's fault."""
