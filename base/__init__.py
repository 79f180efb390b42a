"""What every package stands on: ids, clock, units, environment, home, connections, storage. It imports none of ours."""
