"""The data plane's APIs, a room each: `endpoint` declares its functions, `wire` has its fields and answers."""
