"""The foundation of every package: ids, clock, units, environment, home, connections, storage. It imports none."""
